"""Every error is one line with the right exit code, and leaves no files behind."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import OWN_LEARNER, class_folders, files, image_folder, run_tiny, text


def no_image() -> list[str]:
    (class_folders() / "b" / "1.png").write_bytes(b"no image")
    return image_folder()


def own(name: str) -> list[str]:
    text("own_cli_learner.py", OWN_LEARNER)
    return ["run", "tiny.yaml", "--learner.name", name]


BAD_INPUT: dict[str, tuple[Callable[[], list[str]], str, str]] = {  # the command; what its line begins with, and holds
    # Paths that the system refuses
    "a token file that is not there": (
        lambda: ["teach", str(class_folders()), "--token-file", "no"],
        "--token-file no: ",
        "",
    ),
    "a folder as a token file": (
        lambda: ["teach", "images", "--token-file", str(class_folders())],
        "--token-file images: ",
        "",
    ),
    "a folder of splits to teach": (
        lambda: ["teach", str(class_folders().rename("train").parent)],
        ".: looks like a folder of splits; give ./train for training\n",
        "",
    ),
    # Addresses, and flags that are none
    **{
        url: (lambda url=url: ["teach", str(class_folders()), "--url", url], f"--url {url}: ", "http://127.0.0.1:8000")
        for url in ("nowhere", "http://", "http://here:port", "http://[::1", "ftp://here")
    },
    "an option like nothing": (lambda: run_tiny("--xyzzy", "1"), "xyzzy: ", ", out, seeds\n"),
    # Commands and flags
    "unknown command": (lambda: ["train"], "'train' is no command", "`dualnet --help`"),
    "no experiment": (lambda: ["run"], "", "NAME_OR_FILE"),
    "unknown device": (lambda: run_tiny("--device", "gpu"), "argument --device: ", "'gpu'"),
    "no cuda": (lambda: run_tiny("--device", "cuda"), "--device cuda: ", "--device cpu"),
    "seed twice": (lambda: run_tiny("--seeds", "1,2,1"), "argument --seeds: ", "'1,2,1'"),
    "seed below 0": (lambda: run_tiny("--seeds", "-1"), "argument --seeds: ", "'-1'"),
    "seed is no number": (lambda: run_tiny("--seeds", "a"), "argument --seeds: ", "'a'"),
    "no seeds": (lambda: run_tiny("--seeds", ""), "argument --seeds: ", "''"),
    "a range that goes down": (lambda: run_tiny("--seeds", "2-1"), "argument --seeds: '2-1' is ", "such as 0-2"),
    "seed too large": (lambda: run_tiny("--seeds", f"{2**80},"), "seed: ", str(2**80)),
    "own seed below 0": (lambda: run_tiny("--seed", "-3"), "tiny.yaml: seed: ", "-3"),
    "seed and seeds": (lambda: run_tiny("--seed", "5", "--seeds", "0,1"), "--seed: ", "--seeds"),
    "flag like one of ours": (lambda: run_tiny("--devise", "cpu"), "devise: ", "device?"),
    "abbreviated flag": (lambda: run_tiny("--ou", "x"), "ou: ", "out?"),
    "out is a file": (lambda: run_tiny("--out", "tiny.yaml"), "tiny.yaml", "--out"),
    "out cannot be written": (lambda: run_tiny("--out", "/proc/out"), "/proc/out/seed-0: ", "("),
    "a name that leads elsewhere": (lambda: run_tiny("--name", "../../foo"), "tiny.yaml: name: ", "'../../foo'"),
    "no name": (lambda: run_tiny("--name", ""), "tiny.yaml: name: ", "''"),
    # Options
    "a section as a value": (lambda: run_tiny("--learner", "er"), "tiny.yaml: learner: ", "--learner.name\n"),
    "unknown option": (lambda: run_tiny("--batchsize", "3"), "batchsize: ", "batch_size?"),
    "below the range": (lambda: run_tiny("--learner.lr", "-1"), "tiny.yaml: learner.lr: ", "-1.0"),
    "no value": (lambda: run_tiny("--learner.encoder.width"), "--learner.encoder.width: ", ""),
    "no option": (lambda: run_tiny("10"), "10: ", "--learner.lr"),
    "an option with an escape": (lambda: run_tiny("--x\x1b[2J\ny", "1"), "x\\x1b[2J\\ny: ", ""),
    # Learners
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
    "no benchmark": (lambda: ["run", text("bad.yaml", "learner: {name: er}")], "bad.yaml: benchmark: ", "`name`"),
    "no learner section": (
        lambda: ["run", text("bad.yaml", "benchmark: {name: procedural}")],
        "bad.yaml: learner: ",
        "`name`",
    ),
    "a file with an escape": (lambda: ["run", text("a\x1b[2J\n.yaml", "a: 1")], "a\\x1b[2J\\n.yaml: a: ", ""),
    # Images
    "unreadable image": (no_image, "", "images/b/1.png: "),
    # Other commands
    "a name that no file can have": (lambda: ["list", "a" * 300], "a" * 300, "another path"),
    "a folder that cannot be so called": (lambda: ["report", "a" * 300], "a" * 300, "another path"),
    "list of the unknown": (lambda: ["list", "demo-e"], "demo-e: ", "demo-er?"),
    "list of a misspelled objective": (lambda: ["list", "barlow_twin"], "barlow_twin: ", "barlow_twins?"),
    "list of a misspelled preset": (lambda: ["list", "bset"], "bset: ", "best?"),
    "list of too much": (lambda: ["list", "demo-er", "demo-dualnet"], "unrecognized arguments: demo-dualnet", "--help"),
    "report of an empty folder": (lambda: Path("empty").mkdir() or ["report", "empty"], "", "empty"),
    "report of no folder": (lambda: ["report", "missing"], "missing", ""),
    "report of a file": (lambda: ["report", "tiny.yaml"], "tiny.yaml", ""),
    "report of an unknown spread": (lambda: ["report", ".", "--spread", "x"], "argument --spread: ", "'x'"),
    "predict by no run": (
        lambda: Path("empty").mkdir() or ["predict", "empty", "image.png"],
        "empty: ",
        "holds no checkpoint",
    ),
    "predict by a missing run": (lambda: ["predict", "missing", "image.png"], "missing: ", ""),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_leaves_nothing(case: str, here: Path, monkeypatch, error_line) -> None:
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command, beginning, named = BAD_INPUT[case]
    words = command()
    before = files()
    line = error_line(*words)
    sys.modules.pop("own_cli_learner", None)
    assert line.startswith(f"dualnet: {beginning}") and named in line and "\x1b" not in line, line
    after = {path: facts for path, facts in files().items() if "__pycache__" not in path}
    assert set(after) - {"cache", "cache/lock"} == set(before)


@pytest.mark.parametrize("words", [["run", "tiny.yaml"], ["search", "demo-er"], ["reproduce", "small-table-1"]])
def test_a_run_folder_cannot_contain_runs(words: list[str], trained: Path, error_line) -> None:
    before = sorted(trained.rglob("*"))
    line = error_line(*words, "--out", trained, "--device", "cpu")
    assert line.startswith(f"dualnet: {trained}") and f"--out {trained.parent}" in line
    assert sorted(trained.rglob("*")) == before
