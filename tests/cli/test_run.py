"""`dualnet run`: folders, names, seeds, the user's own images and learners, failures."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import (
    OWN_LEARNER,
    PROGRAM,
    class_folders,
    environment,
    experiment_file,
    image_folder,
    names_in,
    run_tiny,
    text,
)
from run_fixtures import result_of

import dualnet
from dualnet import cli
from dualnet.cli.run import faster_options
from dualnet.experiments.experiment import parse


def test_run_leaves_one_folder_per_seed(capsys) -> None:
    assert cli.main(run_tiny("--out", "out", "--seeds", "2,0", "--device", "cpu", "--learner.lr", "0.1")) == 0
    out, err = capsys.readouterr()
    assert out == "out: finished; `dualnet report out` shows the result\n"
    assert [line.rpartition(": ACC")[0] for line in err.splitlines()[1:]] == [
        "tiny, 1/2: tiny, seed 2",
        "tiny, 2/2: tiny, seed 0",
    ]
    assert names_in("out") == ["seed-0", "seed-2"]
    for seed in (0, 2):
        written = yaml.safe_load(Path(f"out/seed-{seed}/experiment.yaml").read_text())
        assert (written["seed"], written["learner"]["lr"], written["name"]) == (seed, 0.1, "tiny")
        assert result_of(Path(f"out/seed-{seed}"))["steps"] == 4


def test_a_number_of_seeds_or_a_single_one(capsys) -> None:
    assert cli.main(run_tiny("--out", "out", "--seeds", "2", "--device", "cpu")) == 0
    assert "--seeds 2: the seeds 0 to 1; for seed 2 alone give `2,`" in capsys.readouterr().err
    assert cli.main(run_tiny("--out", "one", "--seeds", "2,", "--device", "cpu")) == 0
    assert (names_in("out"), names_in("one")) == (["seed-0", "seed-1"], ["seed-2"])


def test_a_damaged_result_is_recomputed(error_line) -> None:
    words = run_tiny("--out", "out", "--device", "cpu")
    result = Path("out/seed-0/result.json")
    assert cli.main(words) == 0
    first = json.loads(result.read_text())
    result.write_text("{")
    assert "out/seed-0/result.json: " in error_line(*words)
    result.unlink()
    assert cli.main(words) == 0
    assert json.loads(result.read_text())["accuracy"] == first["accuracy"]


def test_the_folder_is_named_after_the_experiment_and_the_seed_is_its_own() -> None:
    experiment_file("mine.yaml", seed=3)
    assert cli.main(["run", "mine.yaml", "--device", "cpu"]) == 0
    assert Path("runs/mine/seed-3/result.json").is_file()
    assert cli.main(["run", "mine.yaml", "--device", "cpu", "--seed", "4"]) == 0
    assert names_in("runs/mine") == ["seed-3", "seed-4"]


def test_the_name_includes_another_learner_given_on_the_command_line() -> None:
    """Otherwise the folder and the row in the report would be named after another learner."""
    words = run_tiny("--device", "cpu", "--learner.name", "derpp")
    assert cli.main(words) == 0
    assert names_in("runs") == ["tiny,learner=derpp"]
    assert dualnet.load("runs/tiny,learner=derpp/seed-0").learner.__class__ is dualnet.learners.DERpp
    assert cli.main([*words, "--name", "mine"]) == 0
    assert names_in("runs") == ["mine", "tiny,learner=derpp"]


def test_seeds_that_diverge_are_named_and_the_others_reported(own_learner: str, capsys) -> None:
    experiment_file("own.yaml", learner={"name": own_learner, "loss_breaks_at": 1, "only_seed": 1})
    assert cli.main(["run", "own.yaml", "--out", "out", "--device", "cpu", "--seeds", "1,0"]) == 1
    out, err = capsys.readouterr()
    assert err.splitlines()[-1].startswith("dualnet: out: seed-1: loss 'labels' is not finite at step ")
    assert out == "out: not all finished; `dualnet report out` shows the result\n"
    assert Path("out/seed-0/result.json").exists() and not Path("out/seed-1/result.json").exists()
    assert cli.main(["report", "out"]) == 0
    assert "2, diverged" in Path("out/report.md").read_text()


def test_ctrl_c_before_the_first_step(monkeypatch, capsys) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dualnet.data.procedural.Procedural.make", interrupted)
    assert cli.main(run_tiny("--out", "out")) == 130
    err = capsys.readouterr().err
    assert err.startswith("dualnet: ") and err.count("\n") == 1
    assert not Path("out").exists()


def test_a_folder_of_images_from_run_to_predict(capsys) -> None:
    class_folders()
    assert cli.main([*image_folder(), "--out", "out", "--device", "cpu"]) == 0
    assert len(list(Path("cache").glob("*.npy"))) == 1
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
def test_the_faster_options_are_those_of_the_experiment(benchmark: Any, updates: int, expected: list[str]) -> None:
    words = faster_options(parse({"name": "a", "benchmark": benchmark, "learner": {"name": "er", "updates": updates}}))
    assert words == " ".join([*expected, "--out ANOTHER"] if expected else [])


def test_a_learner_from_a_file_on_pythonpath(here: Path) -> None:
    """In a process of its own, as a user would start it."""
    Path("mine").mkdir()
    text("mine/own_cli_learner.py", OWN_LEARNER)
    file = experiment_file("own.yaml", learner={"name": "own_cli_learner.Own", "encoder": {"width": 2}, "updates": 1})
    words = ["run", file, "--out", "out", "--device", "cpu", "--learner.lr", "0.2"]
    done = subprocess.run([*PROGRAM, *words], env=environment(here / "mine"), capture_output=True, text=True)
    assert (done.returncode, done.stdout[:14]) == (0, "out: finished;"), done.stderr
    assert "\x1b" not in done.stderr and done.stderr.splitlines()[0] == "own seed 0: 4 steps"
    learner = yaml.safe_load(Path("out/seed-0/experiment.yaml").read_text())["learner"]
    asked = {"name": "own_cli_learner.Own", "lr": 0.2, "updates": 1, "augment": "none"}
    assert learner == {**learner, **asked}, "beside them all defaults"
