"""Stopped and resumed equals never stopped: bit by bit, wherever the run was stopped and whatever stopped it."""

import itertools
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import CommandLine
from run_fixtures import KillAt, Killed

from dualnet import atomic, cli
from dualnet.experiments import checkpoint
from dualnet.experiments.record import read_record
from dualnet.experiments.stop import Stop, StopRequested
from dualnet.learners import LEARNERS

NUM_STEPS = 6  # of the tiny experiment, three in a task


@pytest.mark.parametrize("step", [2, NUM_STEPS - 1])
def test_stopped_after_a_step(step, tiny, run, stop_at, run_state, never_stopped, tmp_path) -> None:
    with pytest.raises(StopRequested, match=f"after step {step} of {NUM_STEPS}"):
        run(tiny(), tmp_path, stop_at(step))
    assert not (tmp_path / "result.json").exists()
    assert checkpoint.steps(tmp_path / "checkpoint")[-1] == step
    assert read_record(tmp_path).last_step == step, "the report says so too"
    assert run_state(run(tiny(), tmp_path)) == never_stopped


def test_stopped_between_two_tasks(tiny, run, stop_at, run_state, never_stopped, tmp_path) -> None:
    with pytest.raises(StopRequested, match="after step 3 of 6"):
        run(tiny(), tmp_path, stop_at(task=0, number=signal.SIGTERM))
    assert run_state(run(tiny(), tmp_path)) == never_stopped


def test_stopped_after_every_single_step(tiny, run, stop_at, run_state, never_stopped, tmp_path) -> None:
    for step in range(1, NUM_STEPS):
        with pytest.raises(StopRequested):
            run(tiny(), tmp_path, stop_at(step))
    assert run_state(run(tiny(), tmp_path)) == never_stopped


@pytest.mark.parametrize("where", [{"step": NUM_STEPS}, {"task": 1}])
def test_asked_too_late_to_stop_the_run_is_finished(where, tiny, run, stop_at, run_state, never_stopped, tmp_path):
    assert run_state(run(tiny(), tmp_path, stop_at(**where))) == never_stopped


PROTOCOLS = ("task_aware", "task_free", "task_free_boundaries")


@pytest.mark.parametrize(
    ("name", "protocol"),
    [*((name, "task_aware") for name in LEARNERS), *itertools.product(("er", "dualnet"), PROTOCOLS[1:])],
)
def test_every_learner_resumes(name, protocol, quick_tiny, run, stop_at, run_state, tmp_path) -> None:
    learner = {"soft_labels": {"when": "insertion"}} if (name, protocol) == ("dualnet", "task_free") else name
    experiment = quick_tiny(learner, protocol=protocol, log_every=4, checkpoint_every=100)
    whole = run_state(run(experiment, tmp_path / "whole"))
    with pytest.raises(StopRequested):
        run(experiment, tmp_path / "stopped", stop_at(4))
    assert run_state(run(experiment, tmp_path / "stopped")) == whole


def test_a_learner_of_ones_own_resumes(own_learner, tiny, run, stop_at, run_state, tmp_path) -> None:
    whole = run_state(run(tiny(own_learner), tmp_path / "whole"))
    with pytest.raises(StopRequested):
        run(tiny(own_learner), tmp_path / "stopped", stop_at(5))
    assert run_state(run(tiny(own_learner), tmp_path / "stopped")) == whole


@pytest.mark.filterwarnings("error")
def test_killed_at_any_write(quick_tiny, run, run_state, tmp_path, monkeypatch) -> None:
    """Before a file, with half of it written, or after it: experiment.yaml, checkpoints, classes.json, result.json."""
    write, written = atomic.write, []
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write", lambda path, data: (written.append(path), write(path, data)))
        whole = run_state(run(quick_tiny(), tmp_path / "whole"))
    assert len(written) == 1 + 4 + 2
    for number in range(len(written)):
        moment = ("before", "half", "after")[number % 3]
        left = [number]

        def die(path: Path, data: bytes | str, left: list[int] = left, moment: str = moment) -> None:
            if left[0] == 0:
                if moment == "half":
                    path.with_name(f"{path.name}.123{atomic.TEMPORARY}").write_bytes(b"half")
                if moment == "after":
                    write(path, data)
                raise Killed
            left[0] -= 1
            write(path, data)

        folder = tmp_path / str(number)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(atomic, "write", die)
            run(quick_tiny(), folder)
        assert run_state(run(quick_tiny(), folder)) == whole, (number, moment)
        assert not list(folder.rglob(f"*{atomic.TEMPORARY}"))
        assert len(list((folder / "checkpoint").iterdir())) <= checkpoint.KEPT + 1


@pytest.mark.parametrize("step", [1, 3, 6])
def test_a_crash_in_between_goes_back_to_the_checkpoint(step, tiny, run, run_state, never_stopped, tmp_path) -> None:
    with pytest.raises(Killed):
        run(tiny(), tmp_path, KillAt(step))
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"event": "losses", "tas')  # a line that was cut short
    assert run_state(run(tiny(), tmp_path)) == never_stopped


def test_a_lost_log_does_not_stop_the_run(tiny, run, stopped, run_state, never_stopped) -> None:
    (stopped / "log.jsonl").unlink()
    resumed = run_state(run(tiny(), stopped))
    assert [event["step"] for event in resumed.pop("log")] == [6, 6, 6]
    assert resumed == {key: value for key, value in never_stopped.items() if key != "log"}


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def damage_both(folder: Path) -> None:
    flip_a_byte(folder / "checkpoint" / "step-00000004.safetensors")
    (folder / "checkpoint" / "step-00000005.safetensors").write_text("garbage")


@pytest.mark.filterwarnings("ignore:.*damaged checkpoint")
def test_with_all_checkpoints_damaged_the_run_begins_anew(tiny, run, stopped, run_state, never_stopped) -> None:
    damage_both(stopped)
    assert run_state(run(tiny(), stopped)) == never_stopped


@pytest.mark.filterwarnings("ignore:.*damaged checkpoint")
def test_a_damaged_checkpoint_does_not_push_out_a_good_one(tiny, run, stopped, stop_at) -> None:
    damage_both(stopped)
    with pytest.raises(StopRequested):
        run(tiny(), stopped, stop_at(1))
    assert checkpoint.steps(stopped / "checkpoint") == [1]
    assert checkpoint.load(stopped / "checkpoint", 1).tree["learner"]


def test_the_command_line_warns_of_a_damaged_checkpoint(tiny_file, stopped, run_state, never_stopped, capsys) -> None:
    flip_a_byte(stopped / "checkpoint" / "step-00000005.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.filters", [])
        assert cli.main(["run", str(tiny_file), "--out", str(stopped.parent), "--device", "cpu"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("dualnet: warning: ") and "step-00000005.safetensors: " in lines[0]
    assert lines[1] == "tiny seed 0: 6 steps, continues from step 4"
    assert run_state(stopped) == never_stopped


def test_the_second_signal_is_the_process_s_own(default_sigint: None) -> None:
    with Stop() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_that_is_passed_on_may_come_twice(monkeypatch) -> None:
    """A scheduler sends SIGTERM to parent and child, and the parent passes it on."""
    monkeypatch.setattr(Stop, "is_forwarded", True)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("only root can mount a file system")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("room", [0, 8, 0.5, 1.5, 2.5], ids=str)
def test_a_full_disk(room, small_disk: Path, tiny_file: Path, finished, run_state, never_stopped, capsys) -> None:
    """Space for nothing, for experiment.yaml only (kB), or for some checkpoints; then space is freed."""
    size = sum(file.stat().st_size for file in (finished / "checkpoint").glob("step-00000006.*"))
    left = int(room * size) if isinstance(room, float) else room * 1024
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - left))
    words = ["run", str(tiny_file), "--out", str(small_disk / "out"), "--device", "cpu"]
    assert cli.main(words) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dualnet: ")]
    assert len(lines) == 1 and lines[0].startswith(f"dualnet: {small_disk}/out")
    assert "No space left on device" in lines[0]
    assert not list(small_disk.rglob(f"*{atomic.TEMPORARY}"))
    saved = checkpoint.steps(small_disk / "out" / "seed-0" / "checkpoint")
    assert len(saved) == (int(room) if isinstance(room, float) else 0)
    (small_disk / "filler").unlink()
    assert cli.main(words) == 0
    begun = capsys.readouterr().err.splitlines()[0]
    assert begun == "tiny seed 0: 6 steps" + (f", continues from step {saved[-1]}" if saved else "")
    assert run_state(small_disk / "out" / "seed-0") == never_stopped


def test_a_limit_on_the_size_of_files(tiny_file, tmp_path, run_state, never_stopped, capsys) -> None:
    """The same without a mount: only the tensors do not fit."""
    words = ["run", str(tiny_file), "--out", str(tmp_path), "--device", "cpu"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        assert cli.main(words) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"dualnet: {tmp_path}/seed-0/checkpoint/step-00000002.safetensors: File too large; ")
    assert list((tmp_path / "seed-0" / "checkpoint").iterdir()) == []
    assert cli.main(words) == 0
    assert run_state(tmp_path / "seed-0") == never_stopped


# From here on: real processes, real signals. More steps, so that there is something to stop.
LONG = ("--benchmark.train_per_class", 20, "--benchmark.num_tasks", 3, "--batch_size", 2)
LONG += (
    "--evaluate_every",
    7,
    "--learner.encoder.name",
    "own_encoder.ThreeMaps",
)  # with which it takes half of the time
LONG_STEPS = 60


class Process(CommandLine):
    """`dualnet run` on the long experiment."""

    def __init__(self, file: Path, out: Path) -> None:
        super().__init__("run", file, "--out", out, "--device", "cpu", *LONG)
        self.first_line = self.output.readline()

    def past(self, step: int, checkpoints: Path, number: int, seconds: float = 0) -> tuple[int, str]:
        """Send a signal once a checkpoint of this step exists, and some seconds later."""
        while max(checkpoint.steps(checkpoints), default=0) < step and self.process.is_alive():
            time.sleep(0.005)
        time.sleep(seconds)
        self.send_signal(number)
        return self.rest()


@pytest.fixture(scope="module")
def whole(tiny_file, tmp_path_factory, run_state) -> dict[str, Any]:
    """What the long experiment leaves when nothing stops it."""
    out = tmp_path_factory.mktemp("whole")
    process = Process(tiny_file, out)
    code, said = process.rest()
    assert code == 0, process.first_line + said
    assert process.first_line == f"tiny seed 0: {LONG_STEPS} steps\n"
    return run_state(out / "seed-0")


def test_killed_at_ten_random_moments(tiny_file, tmp_path, whole, run_state) -> None:
    """The process may have made more steps than this one has seen, and on a busy machine all that were left."""
    chance, checkpoints = random.Random(0), tmp_path / "seed-0" / "checkpoint"
    killed = 0
    for step in [0, *sorted(chance.sample(range(1, LONG_STEPS // 2), 9))]:
        code, said = Process(tiny_file, tmp_path).past(step, checkpoints, signal.SIGKILL, chance.uniform(0, 0.02))
        assert code in (0, -signal.SIGKILL), said
        killed += code != 0
    assert killed >= 5
    process = Process(tiny_file, tmp_path)
    code, said = process.rest()
    assert code == 0, said
    assert run_state(tmp_path / "seed-0") == whole


def test_stopped_by_ctrl_c_then_by_sigterm(tiny_file, tmp_path, whole, run_state, capsys) -> None:
    checkpoints = tmp_path / "seed-0" / "checkpoint"
    process = Process(tiny_file, tmp_path)
    again = cli.main(["run", str(tiny_file), "--out", str(tmp_path), "--device", "cpu", *map(str, LONG)])
    refusal = capsys.readouterr().err
    code, said = process.past(LONG_STEPS // 4, checkpoints, signal.SIGINT)
    assert (code, said.splitlines()[-1][:27]) == (130, "dualnet: stopped after step")
    assert "the same command" in said and "Traceback" not in said
    assert again == 2, "a second process must not write into the folder of a running one"
    assert (
        refusal == f"dualnet: {tmp_path}/seed-0: another process is running here; wait for it or choose another --out\n"
    )
    code, said = Process(tiny_file, tmp_path).past(LONG_STEPS // 2, checkpoints, signal.SIGTERM)
    assert (code, said.splitlines()[-1][:27]) == (130, "dualnet: stopped after step")
    code, said = Process(tiny_file, tmp_path).rest()
    assert code == 0, said
    assert run_state(tmp_path / "seed-0") == whole


def test_the_step_is_that_of_the_content(tiny, run, stopped, run_state, never_stopped) -> None:
    file = stopped / "checkpoint" / "step-00000005.safetensors"
    file.rename(file.with_stem("step-00000009"))
    run(tiny(), stopped)
    assert run_state(stopped) == never_stopped


@pytest.mark.parametrize("other", [{"seed": 1}, {"batch_size": 2}])
def test_a_checkpoint_of_another_run_is_passed_over(
    other, tiny, run, stop_at, stopped, tmp_path, run_state, never_stopped
) -> None:
    """Seed 1's files over seed 0's, or those of other options."""
    with pytest.raises(StopRequested):
        run(tiny(**other), tmp_path / "other", stop_at(5))
    shutil.rmtree(stopped / "checkpoint")
    shutil.copytree(tmp_path / "other" / "checkpoint", stopped / "checkpoint")
    with pytest.warns(UserWarning, match=r"safetensors: .*another run: its (seed|experiment) is .*"):
        run(tiny(), stopped)
    assert run_state(stopped) == never_stopped
