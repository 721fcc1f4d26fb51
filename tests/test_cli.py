"""The command line: what it does, and that every mistake is one line, the right exit code, and nothing left behind."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import dualnet
from dualnet import cli
from dualnet.cli.run import quicker_options
from dualnet.data import BENCHMARKS
from dualnet.learners import LEARNERS
from dualnet.memory import MEMORIES
from dualnet.objectives import OBJECTIVES
from dualnet.runs.experiment import parse, read
from dualnet.runs.option_files import shipped_files

SOURCE = str(Path(dualnet.__file__).parent.parent)
TINY = {
    "benchmark": {
        "name": "procedural",
        "num_tasks": 2,
        "classes_per_task": 2,
        "train_per_class": 4,
        "test_per_class": 2,
        "image_size": 28,
    },
    "learner": {"name": "er", "width": 2, "updates": 1, "replay_size": 4},
    "batch_size": 4,
}
NEAR_VERBS = {"train": "run", "fit": "run", "eval": "report", "test": "predict", "tune": "search"}
OWN_LEARNER = """
from dualnet import Finetune

class Own(Finetune):
    pass

class NoConfig(Finetune):
    Config = dict

class NoLearner:
    pass
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every test works in a folder of its own, with the tiny experiment, one image, and its own cache of images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("warnings.showwarning", cli.show_warning)  # put back after the test
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
    picture(Path("image.png"), seed=0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be read only."""
    out = tmp_path_factory.mktemp("trained")
    (out / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    assert cli.main(["run", str(out / "tiny.yaml"), "--out", str(out), "--device", "cpu"]) == 0
    return out / "seed-0"


def picture(path: Path, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (28, 28, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def files() -> dict[str, tuple[int, int]]:
    """All that lies here, folders too, with size and time."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in Path().rglob("*")}


def names_in(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def experiment_file(name: str, **sections: Any) -> str:
    Path(name).write_text(yaml.safe_dump({**TINY, **sections}))
    return name


def class_folders(classes: str = "abcd", per_class: int = 4) -> Path:
    for name in classes:
        for number in range(per_class):
            picture(Path("images", name, f"{number}.png"), number)
    return Path("images")


def image_folder(**options: Any) -> list[str]:
    """The command that runs on the folder `images`."""
    benchmark = {"name": "image_folder", "root": "images", "classes_per_task": 2, "image_size": 28, **options}
    return ["run", experiment_file("folder.yaml", benchmark=benchmark)]


def lists(train: str, test: str = "a/0.png,0\n") -> list[str]:
    """The command that runs on miniImageNet with these lists; the image a/0.png is there."""
    picture(Path("mini", "a", "0.png"), 0)
    Path("mini", "cl_train.csv").write_text(train)
    Path("mini", "cl_test.csv").write_text(test)
    return mini_imagenet()


def mini_imagenet() -> list[str]:
    return ["run", experiment_file("mini.yaml", benchmark={"name": "mini_imagenet", "root": "mini"})]


# Preparation


def no_image() -> list[str]:
    (class_folders() / "b" / "1.png").write_bytes(b"no image")
    return image_folder()


def empty_class() -> list[str]:
    (class_folders() / "e").mkdir()
    return image_folder(classes_per_task=1)


def one_image_of_a_class() -> list[str]:
    class_folders("abc")
    picture(Path("images", "d", "0.png"), 0)
    return image_folder()


def text(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


def own(name: str) -> list[str]:
    text("own_cli_learner.py", OWN_LEARNER)
    return ["run", "tiny.yaml", "--learner.name", name]


def run_tiny(*words: str) -> list[str]:
    return ["run", "tiny.yaml", *words]


BAD_INPUT: dict[str, tuple[Callable[[], list[str]], str, str]] = {  # the command; what its line begins with, and holds
    # Verbs and flags
    "no verb": (lambda: [], "", "VERB"),
    "unknown verb": (lambda: ["rnu"], "rnu: ", "run?"),
    "a verb like nothing": (lambda: ["xyzzy"], "xyzzy: ", "dualnet --help"),
    **{word: (lambda word=word: [word], f"{word}: ", f"{verb}?") for word, verb in NEAR_VERBS.items()},
    "no experiment": (lambda: ["run"], "", "NAME_OR_FILE"),
    "unknown device": (lambda: run_tiny("--device", "gpu"), "argument --device: ", "'gpu'"),
    "no cuda": (lambda: run_tiny("--device", "cuda"), "--device cuda: ", "--device cpu"),
    "seed twice": (lambda: run_tiny("--seeds", "1,2,1"), "argument --seeds: ", "'1,2,1'"),
    "seed below 0": (lambda: run_tiny("--seeds", "-1"), "argument --seeds: ", "'-1'"),
    "seed is no number": (lambda: run_tiny("--seeds", "a"), "argument --seeds: ", "'a'"),
    "no seeds": (lambda: run_tiny("--seeds", ""), "argument --seeds: ", "''"),
    "seed too large": (lambda: run_tiny("--seeds", str(2**80)), "seed: ", str(2**80)),
    "own seed below 0": (lambda: run_tiny("--seed", "-3"), "tiny.yaml: seed: ", "-3"),
    "seed and seeds": (lambda: run_tiny("--seed", "5", "--seeds", "0,1"), "--seed: ", "--seeds"),
    "flag like one of ours": (lambda: run_tiny("--devise", "cpu"), "devise: ", "device?"),
    "abbreviated flag": (lambda: run_tiny("--ou", "x"), "ou: ", "out?"),
    "out is a file": (lambda: run_tiny("--out", "tiny.yaml"), "tiny.yaml", "--out"),
    "out cannot be written": (lambda: run_tiny("--out", "/proc/out"), "/proc/out/seed-0: ", "("),
    "a name that leads elsewhere": (lambda: run_tiny("--name", "../../foo"), "tiny.yaml: name: ", "'../../foo'"),
    "no name": (lambda: run_tiny("--name", ""), "tiny.yaml: name: ", "''"),
    # Options
    "unknown option": (lambda: run_tiny("--batchsize", "3"), "batchsize: ", "batch_size?"),
    "unknown option of the learner": (
        lambda: run_tiny("--learner.widht", "3"),
        "tiny.yaml: learner.widht: ",
        "learner.width?",
    ),
    "name misspelt": (lambda: run_tiny("--learner.nam", "er"), "tiny.yaml: learner.nam: ", "learner.name?"),
    "unknown option of the memory": (
        lambda: run_tiny("--learner.memory.polcy", "ring"),
        "tiny.yaml: learner.memory.polcy: ",
        "learner.memory.policy?",
    ),
    "unknown value": (lambda: run_tiny("--protocol", "task-free"), "tiny.yaml: protocol: ", "task_free?"),
    "no number": (lambda: run_tiny("--learner.width", "wide"), "tiny.yaml: learner.width: ", "'wide'"),
    "below the range": (lambda: run_tiny("--learner.lr", "-1"), "tiny.yaml: learner.lr: ", "-1.0"),
    "not finite": (lambda: run_tiny("--learner.lr", "nan"), "tiny.yaml: learner.lr: ", "'nan'"),
    "no value": (lambda: run_tiny("--learner.width"), "--learner.width: ", ""),
    "no option": (lambda: run_tiny("10"), "10: ", "--learner.lr"),
    "an option with an escape": (lambda: run_tiny("--x\x1b[2J\ny", "1"), "x\\x1b[2J\\ny: ", ""),
    "images too small": (lambda: run_tiny("--benchmark.image_size", "8"), "", "28"),
    "more tasks than classes": (lambda: run_tiny("--benchmark.num_tasks", "100"), "", "num_tasks"),
    # Learners
    "unknown learner": (lambda: run_tiny("--learner.name", "dualnt"), "tiny.yaml: learner.name: ", "dualnet?"),
    "unknown module": (lambda: run_tiny("--learner.name", "nowhere.Own"), "tiny.yaml: learner.name: ", "PYTHONPATH"),
    "unknown class": (lambda: own("own_cli_learner.Owner"), "tiny.yaml: learner.name: ", "'own_cli_learner.Owner'"),
    "no learner": (
        lambda: own("own_cli_learner.NoLearner"),
        "tiny.yaml: learner.name: ",
        "'own_cli_learner.NoLearner'",
    ),
    "no dataclass": (lambda: own("own_cli_learner.NoConfig"), "tiny.yaml: learner.name: ", "Config"),
    # Files
    "unknown experiment": (lambda: ["run", "demo-dualnt"], "demo-dualnt: ", "demo-dualnet?"),
    "missing file": (lambda: ["run", "missing.yaml"], "missing.yaml: ", "dualnet list"),
    "file is a folder": (lambda: Path("folder.yaml").mkdir() or ["run", "folder.yaml"], "folder.yaml: ", ".yaml"),
    "this folder": (lambda: ["run", "."], ".: ", ".yaml"),
    "another suffix": (lambda: ["run", text("mine", "a: 1")], "mine: ", ".yaml"),
    "a section twice": (
        lambda: ["run", text("bad.yaml", "benchmark: {name: procedural}\nlearner: {name: er}\n\nlearner: {name: mir}")],
        "bad.yaml: ",
        "line 4: `learner`",
    ),
    "no YAML": (lambda: ["run", text("bad.yaml", "a: [1\nb: }")], "bad.yaml: ", "line 2, column 2"),
    "no text": (lambda: ["run", text("bad.yaml", b"\xff\xfe\x00")], "bad.yaml: ", "YAML"),
    "a list": (lambda: ["run", text("bad.yaml", "- a\n- b")], "bad.yaml: ", "mapping"),
    "an empty file": (lambda: ["run", text("bad.yaml", "")], "bad.yaml: ", "mapping"),
    "no benchmark": (lambda: ["run", text("bad.yaml", "learner: {name: er}")], "bad.yaml: benchmark: ", "`name`"),
    "no learner section": (
        lambda: ["run", text("bad.yaml", "benchmark: {name: procedural}")],
        "bad.yaml: learner: ",
        "`name`",
    ),
    "no name of the learner": (
        lambda: ["run", text("bad.yaml", "benchmark: {name: procedural}\nlearner: {width: 3}")],
        "bad.yaml: learner.name: ",
        "",
    ),
    "an empty value": (lambda: ["run", experiment_file("bad.yaml", protocol=None)], "bad.yaml: protocol: ", ""),
    "a file with an escape": (lambda: ["run", text("a\x1b[2J\n.yaml", "a: 1")], "a\\x1b[2J\\n.yaml: a: ", ""),
    "no root": (
        lambda: ["run", experiment_file("bad.yaml", benchmark={"name": "image_folder"})],
        "bad.yaml: benchmark.root: ",
        "",
    ),
    # Images
    "missing folder": (image_folder, "images: ", "/images: a relative path starts at the working directory"),
    "empty class": (empty_class, "images/e: ", ".png"),
    "unreadable image": (no_image, "", "images/b/1.png: "),
    "one image for both sides": (one_image_of_a_class, "", "class 'd'"),
    "fewer classes than tasks need": (lambda: class_folders() and image_folder(num_tasks=3), "", "num_tasks"),
    "unknown class to order": (lambda: class_folders() and image_folder(class_order=["a", "z"]), "", "'z'"),
    "missing lists": (mini_imagenet, "", "mini"),
    "a list names a missing file": (
        lambda: lists("a/0.png,0\na/1.png,0\n"),
        "",
        "mini/cl_train.csv, line 2: ",
    ),
    "a label is no integer": (lambda: lists("a/0.png,cat\n"), "", "mini/cl_train.csv, line 1: 'a/0.png,cat'"),
    "a list of other columns": (lambda: lists("a/0.png\n"), "", "mini/cl_train.csv, line 1: "),
    "an image in both lists": (lambda: lists("a/0.png,0\n"), "", "mini/a/0.png is also in cl_train.csv"),
    # Other verbs
    "a name that no file can have": (lambda: ["list", "a" * 300], "a" * 300, "shorter"),
    "a folder that cannot be so called": (lambda: ["report", "a" * 300], "a" * 300, "shorter"),
    "list of the unknown": (lambda: ["list", "demo-e"], "demo-e: ", "demo-er?"),
    "list of too much": (lambda: ["list", "demo-er", "demo-dualnet"], "demo-dualnet: ", "--help"),
    "report of an empty folder": (lambda: Path("empty").mkdir() or ["report", "empty"], "", "empty"),
    "report of no folder": (lambda: ["report", "missing"], "missing", ""),
    "report of a file": (lambda: ["report", "tiny.yaml"], "tiny.yaml", ""),
    "report of an unknown spread": (lambda: ["report", ".", "--spread", "x"], "argument --spread: ", "'x'"),
    "predict by no run": (
        lambda: Path("empty").mkdir() or ["predict", "empty", "image.png"],
        "empty: ",
        "experiment.yaml",
    ),
    "predict by a missing run": (lambda: ["predict", "missing", "image.png"], "missing: ", ""),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_leaves_nothing(case: str, here: Path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command, beginning, named = BAD_INPUT[case]
    words = command()
    before = files()
    code = cli.main(words)
    out, err = capsys.readouterr()
    sys.modules.pop("own_cli_learner", None)
    assert err.startswith(f"dualnet: {beginning}") and named in err and err.count("\n") == 1 and err.endswith("\n"), err
    assert "\x1b" not in err
    assert (code, out) == (2, "")
    after = {path: facts for path, facts in files().items() if "__pycache__" not in path}
    after.pop("cache", None)  # the empty folder may stay; what is in it may not
    assert set(after) == set(before)


BAD_PREDICTIONS = {  # words, and what the line must name
    "no image": ([], "IMAGE"),
    "missing image": (["missing.png"], "missing.png: "),
    "not an image": (["tiny.yaml"], "tiny.yaml: "),
    "one of them is not": (["image.png", "tiny.yaml"], "tiny.yaml: "),
    "a name with an escape": (["a\x1b[2J\n.png"], "a\\x1b[2J\\n.png: "),
    "unknown task": (["image.png", "--task", "2"], "task: 2 "),
    "negative task": (["image.png", "--task", "-1"], "task: -1 "),
    "task is no number": (["image.png", "--task", "x"], "--task: "),
    "no class to name": (["image.png", "--top", "0"], "top: 0 "),
    "unknown flag": (["image.png", "--jsn"], "--jsn: "),
    "an image after the options": (["image.png", "--task", "0", "image.png"], "image.png: "),
}


@pytest.mark.parametrize("case", BAD_PREDICTIONS)
def test_bad_input_to_predict(case: str, trained: Path, capsys) -> None:
    words, line = BAD_PREDICTIONS[case]
    assert cli.main(["predict", str(trained), *words]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("dualnet: ") and err.count("\n") == 1 and line in err
    assert out == "", "no answer to some of the images"


def test_run_leaves_one_folder_per_seed(capsys) -> None:
    assert cli.main(run_tiny("--out", "out", "--seeds", "2,0", "--device", "cpu", "--learner.lr", "0.1")) == 0
    out, err = capsys.readouterr()
    assert out == "out: finished; `dualnet report out` shows the result\n"
    assert [line.partition(":")[0] for line in err.splitlines()] == ["tiny seed 2"] * 3 + ["tiny seed 0"] * 3
    assert names_in("out") == ["seed-0", "seed-2"]
    for seed in (0, 2):
        written = yaml.safe_load(Path(f"out/seed-{seed}/experiment.yaml").read_text())
        assert (written["seed"], written["learner"]["lr"], written["name"]) == (seed, 0.1, "tiny")
        assert json.loads(Path(f"out/seed-{seed}/result.json").read_text())["steps"] == 4


def test_run_on_a_finished_folder_says_so_and_does_nothing(capsys) -> None:
    words = run_tiny("--out", "out", "--device", "cpu")
    assert cli.main(words) == 0
    before = files()
    capsys.readouterr()
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "out/seed-0: finished before, nothing to do" and err == ""
    assert files() == before


def test_run_of_another_experiment_into_the_folder_is_refused(capsys) -> None:
    assert cli.main(run_tiny("--out", "out", "--device", "cpu")) == 0
    before = files()
    capsys.readouterr()
    assert cli.main(run_tiny("--out", "out", "--device", "cpu", "--learner.lr", "0.5")) == 2
    err = capsys.readouterr().err
    assert err.startswith("dualnet: out/seed-0: ") and "learner.lr is 0.03 there, 0.5 here" in err and "--out" in err
    assert files() == before


def test_a_result_that_was_damaged_is_made_again(capsys) -> None:
    words = run_tiny("--out", "out", "--device", "cpu")
    result = Path("out/seed-0/result.json")
    assert cli.main(words) == 0
    first = json.loads(result.read_text())
    result.write_text("{")
    capsys.readouterr()
    assert cli.main(words) == 2
    assert "out/seed-0/result.json: " in capsys.readouterr().err
    result.unlink()
    assert cli.main(words) == 0
    assert json.loads(result.read_text())["accuracy"] == first["accuracy"]


@pytest.mark.parametrize("words", [["run", "tiny.yaml"], ["search", "demo-er"], ["reproduce", "small-table-1"]])
def test_a_run_folder_is_no_place_for_runs(words: list[str], trained: Path, capsys) -> None:
    before = sorted(trained.rglob("*"))
    assert cli.main([*words, "--out", str(trained), "--device", "cpu"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"dualnet: {trained}") and f"--out {trained.parent}" in err and err.count("\n") == 1
    assert sorted(trained.rglob("*")) == before


def test_a_report_into_a_file(trained: Path, capsys) -> None:
    assert cli.main(["report", str(trained), "--out", "tiny.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("dualnet: tiny.yaml") and "--out" in err and err.count("\n") == 1


def test_the_folder_is_named_after_the_experiment_and_the_seed_is_its_own() -> None:
    experiment_file("mine.yaml", seed=3)
    assert cli.main(["run", "mine.yaml", "--device", "cpu"]) == 0
    assert Path("runs/mine/seed-3/result.json").is_file()
    assert cli.main(["run", "mine.yaml", "--device", "cpu", "--seed", "4"]) == 0
    assert names_in("runs/mine") == ["seed-3", "seed-4"]


def test_another_learner_on_the_command_line_is_in_the_name() -> None:
    """Else a folder and a row of the report would be called after a learner that they are not of."""
    words = run_tiny("--device", "cpu", "--learner.name", "derpp")
    assert cli.main(words) == 0
    assert names_in("runs") == ["tiny,learner=derpp"]
    assert dualnet.load("runs/tiny,learner=derpp/seed-0").learner.__class__ is dualnet.learners.DERpp
    assert cli.main([*words, "--name", "mine"]) == 0
    assert names_in("runs") == ["mine", "tiny,learner=derpp"]


def test_a_diverging_run_is_one_line_and_exit_code_1(capsys) -> None:
    words = run_tiny("--out", "out", "--device", "cpu", "--learner.lr", "1e25", "--log_every", "1")
    assert cli.main(words) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("dualnet: out/seed-0: ") and "not finite at step" in line and "checkpoint" in line
    assert "try a lower rate" in line and not Path("out/seed-0/result.json").exists()


def test_a_seed_that_diverges_does_not_stop_the_next(monkeypatch, capsys) -> None:
    def diverges(self: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {"labels": torch.tensor(torch.nan if self.generator.initial_seed() == 1 else 0.0)}

    monkeypatch.setattr("dualnet.learners.er.ER.learn", diverges)
    assert cli.main(run_tiny("--out", "out", "--device", "cpu", "--seeds", "1,0")) == 1
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert "tiny seed 1: diverged at step 2" in lines
    assert lines[-1].startswith(
        "dualnet: out/seed-1: loss 'labels' is not finite at step 2; there is no checkpoint yet"
    )
    assert out == "out: the other seeds are finished; `dualnet report out` shows the result\n"
    assert Path("out/seed-0/result.json").exists() and not Path("out/seed-1/result.json").exists()
    assert cli.main(["report", "out"]) == 0
    assert "2, diverged" in Path("out/report.md").read_text()


def test_ctrl_c_before_the_first_step(monkeypatch, capsys) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dualnet.data.Procedural.make", interrupted)
    assert cli.main(run_tiny("--out", "out")) == 130
    err = capsys.readouterr().err
    assert err.startswith("dualnet: stopped") and err.count("\n") == 1
    assert not Path("out").exists()


def test_a_folder_of_images_from_the_first_command_to_the_answer(capsys) -> None:
    class_folders()
    assert cli.main([*image_folder(), "--out", "out", "--device", "cpu"]) == 0
    assert len(list(Path("cache").iterdir())) == 1
    capsys.readouterr()
    assert cli.main(["predict", "out/seed-0", "images/c/1.png", "--task", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {entry["name"] for entry in answer["classes"]} == {"c", "d"}


@pytest.mark.parametrize(
    ("benchmark", "updates", "expected"),
    [
        ({"name": "image_folder", "root": "images"}, 4, ["--benchmark.image_size 48", "--learner.updates 2"]),
        ({"name": "core50"}, 2, ["--benchmark.input_size 48"]),
        ({"name": "procedural"}, 6, ["--learner.updates 2"]),
        ({"name": "procedural"}, 2, []),
    ],
)
def test_the_quicker_options_are_those_of_the_experiment(benchmark: Any, updates: int, expected: list[str]) -> None:
    words = quicker_options(parse({"name": "a", "benchmark": benchmark, "learner": {"name": "er", "updates": updates}}))
    assert words == " ".join([*expected, "--out ANOTHER"] if expected else [])


def test_a_learner_from_a_file_on_pythonpath(here: Path) -> None:
    """In a process of its own, as a user would start it."""
    Path("mine").mkdir()
    text("mine/own_cli_learner.py", OWN_LEARNER)
    source = Path(dualnet.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": f"{here / 'mine'}{os.pathsep}{source}", "OMP_NUM_THREADS": "1"}
    file = experiment_file("own.yaml", learner={"name": "own_cli_learner.Own", "width": 2, "updates": 1})
    words = ["run", file, "--out", "out", "--device", "cpu", "--learner.lr", "0.2"]
    done = subprocess.run(
        [sys.executable, "-m", "dualnet.cli", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout[:14]) == (0, "out: finished;"), done.stderr
    assert "\x1b" not in done.stderr and done.stderr.splitlines()[0] == "own seed 0: 4 steps"
    learner = yaml.safe_load(Path("out/seed-0/experiment.yaml").read_text())["learner"]
    asked = {"name": "own_cli_learner.Own", "width": 2, "lr": 0.2, "updates": 1, "augment": "none"}
    assert learner == {**learner, **asked}, "beside them all defaults"


def test_predict_prints_names_with_probabilities(trained: Path, capsys) -> None:
    assert cli.main(["predict", str(trained), "image.png", "image.png"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    name, _, answers = first.partition(": ")
    assert name == "image.png"
    expected = dualnet.load(trained).predict(["image.png"], top=3)[0]
    shown = [f"{c} {100 * p:.1f} %" for c, p in zip(expected.classes, expected.probabilities, strict=True)]
    assert answers.split(", ") == shown and len(shown) == 3


def test_predict_a_folder_and_write_a_table(trained: Path, capsys) -> None:
    for number in range(3):
        picture(Path(f"some/{number}, a.png"), seed=number)
    Path("some/notes.txt").write_text("no image")
    assert cli.main(["predict", str(trained), "some", "image.png", "--csv", "tables/out.csv", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [*(f"some/{n}, a.png" for n in range(3)), "image.png"]
    with Path("tables/out.csv").open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["image", "class_1", "probability_1", "class_2", "probability_2", "error"]
    expected = dualnet.load(trained).predict("some", top=2)
    for row, prediction in zip(rows, expected, strict=False):
        assert (row[1], float(row[2]), row[3]) == (prediction.classes[0], prediction.probability, prediction.classes[1])
    assert len(rows) == 4 and rows[0][0] == "some/0, a.png"


def test_predict_leaves_out_what_cannot_be_read(trained: Path, capsys) -> None:
    for number in range(3):
        picture(Path(f"some/{number}.gif"), seed=number)
    Path("some/1.gif").write_bytes(b"")
    words = ["predict", str(trained), "some", "--task", "1", "--csv", "out.csv"]
    assert cli.main(words) == 2 and not Path("out.csv").exists()
    assert "some/1.gif" in capsys.readouterr().err
    assert cli.main([*words, "--on-error", "skip"]) == 0
    told = capsys.readouterr()
    assert [line.partition(": ")[0] for line in told.out.splitlines()] == ["some/0.gif", "some/2.gif"]
    assert told.err.startswith("dualnet: warning: some/1.gif: ") and told.err.count("\n") == 1
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], bool(row["class_1"]), row["error"]) for row in rows] == [
        ("some/0.gif", True, ""),
        ("some/1.gif", False, "empty file"),
        ("some/2.gif", True, ""),
    ]
    assert cli.main(["predict", str(trained), "some", "--json", "--on-error", "skip", "--task", "1"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer.get("error") for answer in answers] == [None, "empty file", None] and not answers[1]["classes"]
    assert cli.main(["predict", str(trained), "some/1.gif", "--on-error", "skip"]) == 2


def test_predict_as_json(trained: Path, capsys) -> None:
    assert cli.main(["predict", str(trained), "image.png", "--json", "--top", "9"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["image"] == "image.png" and len(answer["classes"]) == 4
    assert sum(entry["probability"] for entry in answer["classes"]) == pytest.approx(1)


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_predict_warns_where_a_task_aware_model_is_told_no_task(json_too: list[str], trained: Path, capsys) -> None:
    """Its answers look as sure as those with a task, and are far less often right."""
    words = ["predict", str(trained), "image.png", *json_too]
    assert cli.main(words) == 0
    untold = capsys.readouterr()
    assert untold.err.startswith("dualnet: warning: ") and untold.err.count("\n") == 1
    assert "--task (0 to 1)" in untold.err and "task_free_boundaries" in untold.err
    assert len(untold.out.splitlines()) == 1 and untold.out.startswith("{" if json_too else "image.png: ")
    assert cli.main([*words, "--task", "1"]) == 0
    assert capsys.readouterr().err == ""


def test_predict_says_nothing_of_tasks_to_a_task_free_model(capsys) -> None:
    assert cli.main(run_tiny("--out", "out", "--device", "cpu", "--protocol", "task_free_boundaries")) == 0
    capsys.readouterr()
    assert cli.main(["predict", "out/seed-0", "image.png"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("task", [0, 1])
def test_predict_with_a_task_names_its_classes_only(task: int, trained: Path, capsys) -> None:
    assert cli.main(["predict", str(trained), "image.png", "--task", str(task), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    content = yaml.safe_load((trained / "experiment.yaml").read_text())["stream"]
    own = {content["class_names"][number] for number in content["tasks"][task]}
    assert {entry["name"] for entry in answer["classes"]} == own
    assert sum(entry["probability"] for entry in answer["classes"]) == pytest.approx(1)


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_report_is_written(trained: Path, capsys) -> None:
    assert cli.main(["report", str(trained), "--out", "report", "--picture", "x.gif"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("dualnet: ") and "x.gif" in err and ".svg" in err and err.count("\n") == 1
    assert not Path("report").exists()


def test_report_reads_what_run_wrote(trained: Path, capsys) -> None:
    assert cli.main(["report", str(trained), "--out", "report"]) == 0
    assert "tiny" in capsys.readouterr().out
    assert {"report.md", "report.html"} <= set(names_in("report"))


def test_a_terminal_that_knows_ascii_only(trained: Path) -> None:
    """The report has dashes and ±."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "dualnet.cli", "report", str(trained), "--out", "report"]
    path = str(Path(dualnet.__file__).parent.parent)
    done = subprocess.run(command, env={**os.environ, **locale, "PYTHONPATH": path}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"") and b"tiny" in done.stdout


def test_list_names_everything(capsys) -> None:
    assert cli.main(["list"]) == 0
    sections = yaml.safe_load(capsys.readouterr().out.replace("  ", "  - "))
    assert sections["experiments"] == [file.stem for file in shipped_files()]
    assert {"dualnet", "er", "finetune"} <= set(sections["learners"])
    assert "demo-er" in sections["searches"]
    assert {"table-1", "small-table-4"} <= set(sections["tables"])
    assert set(sections) == {"experiments", "searches", "tables", "learners", "objectives", "memories", "benchmarks"}


def test_list_shows_an_experiment_that_can_be_run(capsys) -> None:
    assert cli.main(["list", "demo-dualnet"]) == 0
    assert parse(yaml.safe_load(capsys.readouterr().out)) == read("demo-dualnet")


@pytest.mark.parametrize("name", [*LEARNERS, *BENCHMARKS, *MEMORIES, *OBJECTIVES])
def test_list_shows_options_that_a_file_can_hold(name: str, capsys) -> None:
    """With the defaults, and for each option its type and the comment beside it."""
    assert cli.main(["list", name]) == 0
    out = capsys.readouterr().out
    sections = yaml.safe_load(out)
    for key in ("benchmark", "learner"):
        sections[key] = {"name": {"benchmark": "procedural", "learner": "er"}[key]} | sections.get(key, {})
    if "root" in sections["benchmark"]:
        sections["benchmark"]["root"] = sections["benchmark"]["root"] or "somewhere"
    shown = parse({"name": "x", **sections})
    if name in LEARNERS:
        assert (shown.learner_name, shown.learner) == (name, LEARNERS[name].Config())
    assert out.startswith("# ") and len(out.splitlines()[0]) > 10
    lines = [line for line in out.splitlines()[1:] if not line.endswith(":") and " name: " not in line]
    assert all("  # " in line for line in lines)


def test_list_shows_the_comment_beside_an_option(capsys) -> None:
    assert cli.main(["list", "dualnet"]) == 0
    lines = {line.split(":")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert "# float" in lines["beta"] and "Look-ahead" in lines["beta"]
    assert "lambda_tr" in lines["soft_label_weight"], "the comment of a default that takes several lines"
    assert "barlow_twins | simclr" in lines["objective"]
    assert "tuple[float, float]" in lines["crop_area"] and "[0.4307, 0.4307]" in lines["crop_area"]


@pytest.mark.parametrize("name", ["table-1", "mini-imagenet-ta-mir"])
def test_list_shows_a_table_or_a_search_as_its_file(name: str, capsys) -> None:
    assert cli.main(["list", name]) == 0
    assert {"groups", "grid", "stages"} & yaml.safe_load(capsys.readouterr().out).keys()


def test_version(capsys) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"dualnet {dualnet.__version__}\n"


VERBS = ("run", "search", "reproduce", "report", "predict", "list")


@pytest.mark.parametrize("words", [["--help"], *([verb, "--help"] for verb in VERBS)])
def test_help_names_no_file_that_a_wheel_does_not_have(words: list[str], capsys) -> None:
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "usage: dualnet" in out
    assert not re.search(r"docs/|README|CONTRIBUTING|experiments/", out)


@pytest.mark.parametrize("words", [["--version"], ["--help"], *([verb, "--help"] for verb in VERBS), ["train"]])
def test_help_does_not_wait_for_pytorch(words: list[str]) -> None:
    """Modules rather than seconds: a busy machine is slow with any."""
    code = (
        "import sys, dualnet, dualnet.cli; dualnet.cli.main(sys.argv[1:]);"
        "sys.exit(' '.join({'torch', 'numpy', 'rich', 'yaml', 'PIL', 'matplotlib'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], env={**os.environ, "PYTHONPATH": SOURCE}, check=False)
    assert done.returncode == 0


def test_the_package_has_its_names_before_it_imports_them_and_needs_no_scikit_learn() -> None:
    code = (
        "import sys, dualnet\n"
        "assert 'torch' not in sys.modules and {*dualnet.__all__, '__version__'} <= {*dir(dualnet)}\n"
        "from dualnet import ER, Batch, make_learner, load\n"
        "assert dualnet.LEARNERS['er'] is ER and dualnet.learners.ER is ER and dualnet.load is load\n"
        "assert not hasattr(dualnet, 'nothing')\n"
        "from dualnet import *\n"
        "assert StreamSpec is dualnet.StreamSpec and Model is dualnet.Model\n"
        "assert 'torch' in sys.modules and not {'sklearn', 'river'} & sys.modules.keys()\n"
        "sys.modules['sklearn'] = None\n"  # as where it is not installed
        "try:\n    dualnet.DualNetClassifier\n"
        "except ImportError as error:\n    sys.exit(\"pip install 'dualnet[sklearn]'\" not in str(error))\n"
        "sys.exit('imported')"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SOURCE}, check=False)
    assert done.returncode == 0


def test_a_batch_of_one_runs() -> None:
    assert cli.main(run_tiny("--out", "out", "--device", "cpu", "--batch_size", "1")) == 0


def test_a_relative_root_starts_at_the_working_directory(here: Path, capsys) -> None:
    """Not at the folder of the file that names it."""
    class_folders()
    _, file = image_folder()
    Path("below").mkdir()
    Path(file).rename("below/folder.yaml")
    assert cli.main(["run", "below/folder.yaml", "--out", "out", "--device", "cpu"]) == 0
    Path("images").rename("below/images")
    capsys.readouterr()
    assert cli.main(["run", "below/folder.yaml", "--out", "other", "--device", "cpu"]) == 2
    assert str(here / "images") in capsys.readouterr().err


def test_an_interrupt_within_an_exec_is_exit_code_130(tmp_path: Path) -> None:
    """CPython remembers it there, and `python -m` would end by SIGINT although it was handled."""
    code = """
import sys
from dualnet import cli
cli.perform = lambda *_: exec("raise KeyboardInterrupt")
sys.exit(cli.main([]))
"""
    (tmp_path / "interrupted.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(dualnet.__file__).parents[1]}"}
    done = subprocess.run([sys.executable, "-m", "interrupted"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (130, 1), done.stderr
