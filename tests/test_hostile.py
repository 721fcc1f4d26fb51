"""Hostile and damaged input through the command line: one line that names it and the right exit code, in time."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import PROGRAM, environment
from PIL import Image
from rich.console import Console
from run_fixtures import OWN_LEARNER, TINY
from test_files import BOMB, JSON

import dualnet
from dualnet import cli
from dualnet.cli.terminal import print_rich
from dualnet.experiments import checkpoint
from dualnet.jobs.display import RowsDisplay
from dualnet.search.points import Point
from dualnet.search.stage_table import stage_table

ER = {"name": "er", "encoder": {"width": 2}, "updates": 1, "replay_size": 4, "memory": {"slots_per_class": 2}}
RUN = ["run", "tiny.yaml", "--out", "runs", "--device", "cpu"]
REPORT = ["report", "runs", "--out", "report"]
PREDICT = ["predict", "runs/seed-0", "image.png", "--task", "0"]
SHOW = ["show", "runs/seed-0"]
PREDICT_MODEL = ["predict", "model", "image.png", "--task", "0"]
SECONDS = 5  # of processor time

pytestmark = pytest.mark.filterwarnings("always")  # as the command line shows them


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two seeds, a saved model, an experiment's file and an image. Not to be written to."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**TINY, "learner": ER}))
    Image.new("RGB", (28, 28), "red").save(folder / "image.png")
    words = ["run", str(folder / "tiny.yaml"), "--out", str(folder / "runs"), "--seeds", "0,1", "--device", "cpu"]
    assert cli.main(words) == 0
    dualnet.load(folder / "runs" / "seed-0").save(folder / "model")
    return folder


@pytest.fixture(autouse=True)
def here(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of all that, as the working directory."""
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("warnings.showwarning", cli.show_warning)  # put back after the test
    yield tmp_path
    sys.modules.pop("own_module", None)


def write(file: str, content: str | bytes) -> None:
    Path(file).unlink(missing_ok=True)
    Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())


def fifo(file: str) -> None:
    Path(file).unlink(missing_ok=True)
    os.mkfifo(file)


def device(file: str) -> None:
    Path(file).unlink(missing_ok=True)
    Path(file).symlink_to("/dev/zero")


def grey_png(file: str, side: int = 7072) -> None:
    Image.new("L", (side, side)).save(file, compress_level=1)


def content_of(file: str) -> Any:
    if file.endswith(".yaml") or file.endswith(".json"):
        return yaml.safe_load(Path(file).read_text())
    return checkpoint.load(Path(file).parent, int(Path(file).stem.removeprefix("step-"))).tree


def edit(file: str, *way: str | int, value: Any) -> None:
    """Replace one value of a JSON or YAML file, or of a checkpoint."""
    content = content_of(file)
    node = content
    for key in way[:-1]:
        node = node[key]
    node[way[-1]] = value
    if file.endswith(".yaml") or file.endswith(".json"):
        write(file, json.dumps(content))
    else:
        step = int(Path(file).stem.removeprefix("step-"))
        checkpoint.write(Path(file).parent, step, checkpoint.snapshot(content))


def deep_header() -> bytes:
    header = json.dumps({"__metadata__": {"checkpoint": DEEP_JSON}}).encode()
    return len(header).to_bytes(8, "little") + header


def own_learner() -> None:
    """A run folder and a model that name a learner from a file of the user's, which can be imported."""
    write("own_module.py", OWN_LEARNER + "\nprint('imported')\n")
    for file in (NEWEST, MODEL):
        edit(file, "options", value={"name": "own_module.OwnLearner"})


Case = tuple[Callable[[], Any], list[str], int, str]  # preparation, command, exit code, word of its line
RESULT, LOG, EXPERIMENT = (f"runs/seed-0/{name}" for name in ("result.json", "log.jsonl", "experiment.yaml"))
NEWEST, OTHER = (f"runs/seed-{seed}/checkpoint/step-00000006.safetensors" for seed in (0, 1))
MODEL = "model/checkpoint/step-00000001.safetensors"
IMAGES, LABELS = (("learner", f"memory.{name}") for name in ("images", "labels"))
DEEP_JSON = '{"a": ' + "[" * 200_000


CASES: dict[str, Case] = {
    # Contents: tests/test_files.py has the others
    "experiment to run": (lambda: write("bad.yaml", BOMB), ["run", "bad.yaml"], 2, "bad.yaml: "),
    "search": (lambda: write("bad.yaml", BOMB), ["search", "bad.yaml"], 2, "bad.yaml: "),
    "table": (lambda: write("bad.yaml", BOMB), ["reproduce", "bad.yaml"], 2, "bad.yaml: "),
    "experiment of a run": (lambda: write(EXPERIMENT, BOMB), SHOW, 2, EXPERIMENT),
    "result to resume from": (lambda: write(RESULT, DEEP_JSON), RUN, 2, RESULT),
    # Paths and numbers
    "NUL in the experiment": (lambda: None, ["run", "a\0b.yaml"], 2, r"a\x00b.yaml: "),
    "NUL in an option": (lambda: None, [*RUN, "--benchmark.root", "a\0b"], 2, "benchmark.root"),
    "NUL in --out": (lambda: None, ["run", "tiny.yaml", "--out", "a\0b"], 2, "null byte"),
    "NUL in a run folder": (lambda: None, ["predict", "a\0b", "image.png"], 2, r"a\x00b"),
    "NUL in an image": (lambda: None, ["predict", "model", "a\0b.png"], 2, r"a\x00b.png: "),
    "NUL in a table": (lambda: None, ["reproduce", "a\0b.yaml"], 2, r"a\x00b.yaml: "),
    "a huge number": (lambda: None, [*RUN, "--learner.encoder.width", "9" * 400], 2, "learner.encoder.width: "),
    "a huge seed": (lambda: None, [*RUN, "--seeds", "9" * 5000], 2, "--seeds: "),
    "many seeds": (lambda: None, ["reproduce", "small-table-1", "--seeds", "9" * 12], 2, "--seeds: "),
    "many processes": (lambda: None, ["search", "demo-er", "--jobs", "9" * 12], 2, "--jobs: "),
    "a deep option": (lambda: None, [*RUN, "--" + "a." * 5000 + "b", "1"], 2, "a: unknown option"),
    "accuracy is text": (lambda: edit(RESULT, "accuracy", value="high"), RUN, 2, RESULT),
    "accuracy of a ragged table": (lambda: edit(RESULT, "accuracy", value=[[1], [1, 2]]), RUN, 2, RESULT),
    "result.json is a pipe": (lambda: fifo(RESULT), RUN, 2, RESULT),
    "result.json is a device": (lambda: device(RESULT), SHOW, 2, RESULT),
    "experiment.yaml of one name": (lambda: write(EXPERIMENT, "name: x"), SHOW, 2, EXPERIMENT),
    "seed is text": (lambda: edit(EXPERIMENT, "seed", value="x"), SHOW, 2, EXPERIMENT),
    "learner is a list": (lambda: edit(NEWEST, "options", value=[1]), PREDICT, 2, NEWEST),
    "a class below 0": (lambda: edit(NEWEST, "stream", "tasks", 0, 0, value=-1), PREDICT, 2, NEWEST),
    "a class too many": (lambda: edit(NEWEST, "stream", "tasks", 0, 0, value=9), PREDICT, 2, NEWEST),
    "an image of no size": (lambda: edit(NEWEST, "stream", "image_shape", value=[3]), PREDICT, 2, NEWEST),
    "an encoder too wide": (lambda: edit(NEWEST, "options", "encoder", "width", value=10**9), PREDICT, 2, NEWEST),
    "stored images too large": (lambda: edit(NEWEST, *IMAGES, value=torch.zeros(0, 2**50)), PREDICT, 2, NEWEST),
    "a stored class too many": (lambda: edit(NEWEST, *LABELS, value=torch.full((4,), 9)), PREDICT, 2, NEWEST),
    "sessions of numbers": (lambda: edit(MODEL, "sessions", value=[7]), ["show", "model"], 2, "model: its sessions"),
    "a damaged run among others": (lambda: write(RESULT, DEEP_JSON), REPORT, 0, RESULT),
    "log.jsonl is a pipe": (lambda: fifo(LOG), REPORT, 2, LOG),
    # Checkpoints: one that cannot be used is passed over with a warning
    "checkpoint, deep": (lambda: write(NEWEST, deep_header()), PREDICT, 0, NEWEST),
    "checkpoint, a pipe": (lambda: fifo(NEWEST), PREDICT, 0, NEWEST),
    "checkpoint, no tensors": (lambda: write(NEWEST, b"{" * 99), PREDICT, 0, NEWEST),
    "checkpoint of another seed": (lambda: Path(RESULT).unlink() or shutil.copy(OTHER, NEWEST), RUN, 0, NEWEST),
    # Images
    "image is a pipe": (lambda: fifo("bad.png"), ["predict", "model", "bad.png"], 2, "bad.png: "),
    "image is a device": (lambda: None, ["predict", "model", "/dev/zero"], 2, "/dev/zero: "),
    "image of 50.01 megapixels": (lambda: grey_png("bad.png"), ["predict", "model", "bad.png"], 2, "bad.png: "),
    "image name with an escape": (lambda: None, ["predict", "model", "a\x1b[2J\n.png"], 2, r"a\x1b[2J\n.png: "),
    # Code from outside of the package
    "learner of a run": (own_learner, PREDICT, 2, "own_module.OwnLearner"),
    "learner of a model": (own_learner, PREDICT_MODEL, 2, "own_module.OwnLearner"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_the_exit_code(case: str, here: Path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(here)
    prepare, words, code, word = CASES[case]
    prepare()
    begun = time.process_time()
    exit_code = within(60, lambda: cli.main(words))
    out, err = capsys.readouterr()
    ours = [line for line in err.splitlines() if line.startswith("dualnet: ")]
    assert (exit_code, len(ours)) == (code, 1), err
    assert word in ours[0] and "\x1b" not in err
    assert ("warning: " in ours[0]) == (code == 0)
    assert code == 0 or (out == "" and err.count("\n") == 1)
    assert time.process_time() - begun < SECONDS


def within(seconds: int, call: Callable[[], int]) -> int:
    """What the call returns. If it hangs, it is ended by an exception that nothing catches."""

    class Hangs(BaseException):
        pass

    def end(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        return call()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_the_largest_image_is_answered(capsys) -> None:
    grey_png("large.png", 7071)
    assert cli.main(["predict", "model", "image.png", "large.png", "--task", "0"]) == 0
    assert capsys.readouterr().out.count("\n") == 2


LINES = [content if isinstance(content, bytes) else content.encode() for content, _ in JSON.values()]
LINES += [b'{"event": "losses", "step": 1e400, "losses": 5}', b'{"event": "evaluation", "step": 3, "task": [1]}', b"\0"]


def test_damaged_lines_of_a_log_are_left_out(capsys) -> None:
    """The last line of a killed run may be incomplete."""
    with Path(LOG).open("ab") as log:
        log.writelines(line[:1000] + b"\n" for line in LINES)
    assert cli.main(REPORT) == 0
    assert capsys.readouterr().err == ""


# A process of its own: closed outputs and signals


@pytest.mark.parametrize("words", ["list", "--version", "predict nothing image.png"])
def test_a_closed_output_is_one_line(words: str) -> None:
    line = f'"{sys.executable}" -m dualnet {words} >&-'
    done = subprocess.run(line, shell=True, env=environment(Path.cwd()), capture_output=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith(b"dualnet: ") and done.stderr.count(b"\n") == 1


def test_a_closed_error_output_is_not_written_to_the_other() -> None:
    line = f'"{sys.executable}" -m dualnet train 2>&-'
    done = subprocess.run(line, shell=True, env=environment(Path.cwd()), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_reader_that_has_enough_is_told_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [*PROGRAM, "reproduce", "--list"]
    done = subprocess.run(words, env=environment(Path.cwd()), stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.usefixtures("default_sigint")
@pytest.mark.parametrize(
    ("number", "library"), [(signal.SIGINT, "libtorch_cpu"), (signal.SIGTERM, "_multiarray_umath")]
)
def test_a_signal_during_the_imports_is_one_line(number: signal.Signals, library: str) -> None:
    """Sent as soon as the process has loaded that library."""
    words = [*PROGRAM, "run", "tiny.yaml", "--device", "cpu", "--out", "new"]
    process = subprocess.Popen(words, env=environment(Path.cwd()), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while process.poll() is None and not re.search(library, Path(f"/proc/{process.pid}/maps").read_text()):
        time.sleep(0.001)
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130 and out == b""
    assert err.startswith(b"dualnet: stopped") and err.count(b"\n") == 1
    assert not Path("new").exists()


def test_sigterm_before_the_first_step_is_one_line() -> None:
    """During the import of the learner's module, which may take long."""
    write("slow_module.py", "import time\ntime.sleep(0.2)\nprint('here', flush=True)\ntime.sleep(600)\n")
    words = [*PROGRAM, "run", "tiny.yaml", "--learner.name", "slow_module.Own"]
    process = subprocess.Popen(words, env=environment(Path.cwd()), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err.startswith(b"dualnet: stopped") and err.count(b"\n") == 1


# Names on a terminal


def test_names_of_classes_and_files_reach_the_terminal_escaped(capsys) -> None:
    """In JSON they are unchanged."""
    names, image = ["a\x1b[31mred", "b\nline", "c\u202eleft", "d"], "one\x1b]0;title\x07.png"
    for name in names:
        Path("images", name).mkdir(parents=True)
        for number in range(4):
            shutil.copy("image.png", Path("images", name, f"{number}.png"))
    shutil.copy("image.png", image)
    benchmark = {"name": "image_folder", "root": "images", "classes_per_task": 2, "image_size": 28}
    write("folder.yaml", yaml.safe_dump({**TINY, "learner": ER, "benchmark": benchmark}))
    assert cli.main(["run", "folder.yaml", "--out", "out", "--device", "cpu"]) == 0
    capsys.readouterr()
    words = ["predict", "out/seed-0", image, "--top", "4"]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert "one\\x1b]0;title\\x07.png: " in out and "a\\x1b[31mred" in out and "b\\nline" in out
    assert out.count("\n") == 1 and not set("\x1b\x07\u202e") & {*out, *err}
    assert cli.main([*words, "--json"]) == 0
    out = capsys.readouterr().out
    assert {entry["name"] for entry in json.loads(out)["classes"]} == set(names) and "\x1b" not in out
    assert json.loads(out)["image"] == image


def test_a_search_escapes_names_and_values(capsys) -> None:
    hostile = "a\x1b[2J\nb"
    point = Point({}, None, {hostile: hostile}, failed=hostile)
    display = RowsDisplay(Console(stderr=True))
    display.begin(hostile, 1, 1)
    display.run_ended(hostile)
    display.end()
    print_rich(stage_table(hostile, [point], point, "ACC"), width=140)
    out, err = capsys.readouterr()
    assert out.count("a\\x1b[2J\\nb") == 3 and err.count("a\\x1b[2J\\nb") == 3 and "\x1b" not in out + err


# From Python
