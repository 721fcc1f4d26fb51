"""The progress display: live on a terminal, plain lines elsewhere."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path
from random import Random

import pytest
from commands import PROGRAM, environment
from rich.console import Console

from dualnet.experiments import progress
from dualnet.experiments.progress import RunDisplay


def console(terminal: bool, width: int = 120) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, height=20)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plain(text: str) -> str:
    """Without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", text)


def tell(display: RunDisplay, name: str = "demo seed 0", done: int = 0) -> None:
    """The calls of the runner for two tasks of two steps."""
    display.begin(name, 4, done)
    for task in range(2):
        for step in range(2):
            display.step(task, 2, 2 * task + step + 1)
        display.losses({"labels": 0.12345, "slow": 20.0})
        display.evaluated(task, 2, 50.0 + task)
    display.diverged("demo seed 1", 4)
    display.end()


def test_plain_lines_are_plain() -> None:
    out = console(terminal=False)
    tell(RunDisplay(out))
    assert written(out).splitlines() == [
        "demo seed 0: 4 steps",
        "demo seed 0: after task 1/2, 50.0 % on the tasks so far",
        "demo seed 0: after task 2/2, 51.0 % on the tasks so far",
        "demo seed 1: diverged at step 4",
    ]


def test_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    out = console(terminal=False)
    tell(RunDisplay(out), done=0)
    assert "\x1b" not in written(out)
    assert all(line == line.rstrip() for line in written(out).splitlines()), "also before the first losses"
    third = written(out).splitlines()[4]
    assert re.fullmatch(r"demo seed 0: task 2/2, step 3/4, [\d.]+ steps/s, \d+ s left  labels 0.123  slow 20", third), (
        third
    )


def test_the_anytime_accuracy_is_shown_before_the_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    out, live = console(terminal=False), console(terminal=True)
    for display in (RunDisplay(out), RunDisplay(live)):
        display.begin("demo seed 0", 3, 0)
        display.losses({"labels": 0.5})
        display.anytime(61.25)
        display.step(0, 1, 1)
        display.end()
        display.begin("demo seed 1", 3, 0)
        display.step(0, 1, 1)
        display.end()
    first, second = (line for line in written(out).splitlines() if "step 1/3" in line)
    assert first.endswith(" s left  61.2 % on the classes so far  labels 0.5") and second.endswith(" s left")
    assert "61.2 % on the classes so far" in plain(written(live))


class Clock:
    """A clock that the test sets: real times depend on how busy the machine is."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(("longest", "hint"), [(0.0, True), (1e9, False)])
def test_the_first_steps_tell_how_long_it_takes(
    terminal: bool, longest: float, hint: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SHORT", 0.0)
    monkeypatch.setattr(progress, "LONG", longest)
    out = console(terminal)
    display = RunDisplay(out, faster="--learner.updates 2")
    display.begin("demo seed 0", 1_000_000, 100)
    for step in range(101, 131):
        clock.now += 0.5 if step == 103 else 0.001  # the first ones may be slow
        display.step(0, 2, step)
    display.end()
    (line,) = (line for line in plain(written(out)).splitlines() if line.startswith("demo seed 0: about "))
    assert "about 17 min left" in line and ("--learner.updates 2" in line) == hint


@pytest.mark.parametrize("terminal", [False, True])
def test_the_first_step_tells_how_long_so_many_images_take(terminal: bool, clock: Clock) -> None:
    out = console(terminal)
    display = RunDisplay(out)
    for steps in (1, 100):
        display.begin("mine", steps, 0, "10,000 images")
        for step in range(1, steps + 1):
            clock.now += 0.4
            display.step(0, 1, step)
        display.end()
    assert re.findall("mine: .* images.*", plain(written(out)).replace("\r", "\n")) == [
        "mine: 10,000 images, about 40 s"
    ]


def test_slow_steps_are_estimated_earlier(clock: Clock) -> None:
    out = console(terminal=False)
    display = RunDisplay(out)
    display.begin("demo seed 0", 60, 0)
    for step in range(1, 5):
        clock.now += 2 * progress.LINE_EVERY
        display.step(0, 2, step)
    display.end()
    assert len(re.findall(r"^demo seed 0: about \d+ min left$", written(out), re.MULTILINE)) == 1


def test_a_short_run_is_not_estimated() -> None:
    out = console(terminal=False)
    display = RunDisplay(out, faster="--learner.updates 2")
    display.begin("demo seed 0", 40, 0)
    for step in range(1, 41):
        display.step(0, 1, step)
    display.end()
    assert written(out) == "demo seed 0: 40 steps\n"


def test_plain_lines_are_never_wrapped_or_coloured() -> None:
    out = console(terminal=False)
    name = "long " * 60 + "[bold]name[/bold] 12"
    tell(RunDisplay(out), name)
    assert written(out).splitlines()[0] == f"{name}: 4 steps"


def test_a_resumed_run_says_so() -> None:
    out = console(terminal=False)
    RunDisplay(out).begin("demo seed 0", 4, 2)
    assert written(out) == "demo seed 0: 4 steps, continues from step 2\n"


def test_the_live_display() -> None:
    out = console(terminal=True)
    tell(RunDisplay(out))
    text = plain(written(out))
    last = text.splitlines()[-1]
    assert "demo seed 0 task 2/2" in last and "4/4" in last and "steps/s" in last
    assert "labels 0.123  slow 20" in last
    assert "demo seed 0: after task 1/2, 50.0 % on the tasks so far" in text
    assert written(out).rstrip().endswith("\x1b[?25h"), "the cursor is back"


def test_the_line_is_whole_on_a_narrow_terminal(clock: Clock) -> None:
    """Bar, task, step, rate, time left and one loss; a long name is cut."""
    out = console(terminal=True, width=80)
    display = RunDisplay(out)
    display.begin("mini-imagenet-ta-dualnet seed 0", 4250, 0)
    clock.now += 57
    display.step(1, 17, 1234)
    display.losses({"labels": 0.727, "replay": 0.64, "slow": 18.1, "soft_labels": 0.05})
    display.end()
    last = plain(written(out)).splitlines()[-1]
    end = r" task 2/17 \S{5,} 1234/4250 21\.6 steps/s 2 min left {1,3}labels 0\.727"
    assert re.fullmatch(rf"mini-imagenet-t\u2026{end}", last.strip()), last
    assert len(last) <= 80


def test_the_time_left_never_goes_up(clock: Clock) -> None:
    """Evaluations between the steps are no steps, and are expected once more for each task."""
    out = console(terminal=False)
    display, random = RunDisplay(out), Random(0)
    display.begin("demo seed 0", 400, 0)
    for step in range(400):
        clock.now += random.uniform(0.5, 2.0)
        display.step(step // 100, 4, step + 1)
        if step % 100 == 99:
            clock.now += 60
            display.evaluated(step // 100, 4, 50.0)
    display.end()
    left = [line for line in written(out).splitlines() if " left" in line]
    units = {"s": 1, "min": 60}
    seconds = [float(number) * units[unit] for number, unit in re.findall(r"(\d+) (s|min) left", "\n".join(left))]
    assert len(seconds) > 20 and seconds == sorted(seconds, reverse=True)


def test_the_live_display_goes_from_seed_to_seed() -> None:
    out = console(terminal=True)
    display = RunDisplay(out)
    tell(display, "demo seed 0")
    first = len(written(out))
    tell(display, "demo seed 1")
    assert "seed 0" not in written(out)[first:], "a finished bar is not drawn again"
    assert "seed 1" in written(out)[first:]


def test_brackets_in_a_name_are_no_markup() -> None:
    out = console(terminal=True)
    display = RunDisplay(out)
    display.begin("[/b] [red]seed 0", 4, 0)
    display.losses({"[/b]": 1.5, "\x1b[2J": 2.5})  # a learner from outside may name its losses so
    display.end()
    assert "[/b] [red]seed 0" in plain(written(out)) and "[/b] 1.5  \\x1b[2J 2.5" in plain(written(out))


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    tell(RunDisplay())
    assert capsys.readouterr() == ("", "")


def read_all(handle: int) -> str:
    out = b""
    while True:
        try:
            piece = os.read(handle, 65536)
        except OSError:  # how Linux says that nobody has the terminal open any more
            piece = b""
        if not piece:
            return out.decode()
        out += piece


def test_on_a_real_terminal(tiny_file: Path, tmp_path: Path) -> None:
    """The whole program with its messages on a pseudo-terminal, its result in a pipe."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    words, pipe = [*PROGRAM, "run", tiny_file, "--out", tmp_path, "--device", "cpu"], subprocess.PIPE
    with subprocess.Popen(words, env=environment(TERM="xterm"), stdout=pipe, stderr=terminal, text=True) as process:
        os.close(terminal)
        shown = read_all(master)
        assert process.stdout is not None
        said = process.stdout.read()
    os.close(master)
    assert process.returncode == 0, shown
    assert said == f"{tmp_path}: finished; `dualnet report {tmp_path}` shows the result\n"
    assert "\x1b[?25l" in shown and shown.rstrip().endswith("\x1b[?25h")
    assert "tiny seed 0: after task 2/2" in plain(shown) and "6/6" in plain(shown)
