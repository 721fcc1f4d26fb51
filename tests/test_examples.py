"""The examples and the learner of CONTRIBUTING.md run as they are written, and docs/architecture.md is complete."""

import json
import re
import runpy
import sys
import tomllib
from pathlib import Path

import contract
import numpy as np
import pytest
import torch
import yaml
from run_fixtures import log_of, result_of

import dualnet
from dualnet import cli
from dualnet.experiments import checkpoint

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
# Learners outside of the package, with the contract tests that do not hold for them.
OUTSIDE: dict[str, set[str]] = {
    "rehearsal.Rehearsal": set(),
    "balanced_replay.BalancedReplay": {
        "test_a_missing_label_is_a_missing_term_of_the_loss"  # expects plain cross-entropy
    },
}


def block(language: str) -> str:
    """The one block of that language in CONTRIBUTING.md."""
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
    return code


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of CONTRIBUTING.md, on the path as the examples are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warnings.showwarning", cli.show_warning)  # put back after the test
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(tmp_path)
    Path("rehearsal.py").write_text(block("python"))
    Path("rehearsal.yaml").write_text(block("yaml"))
    return tmp_path


def run(file: Path | str, *options: str) -> Path:
    """The experiment by the command line; its run folder."""
    assert cli.main(["run", str(file), "--device", "cpu", *options]) == 0
    return Path("runs") / Path(file).stem / "seed-0"


def images(count: int, side: int = 32) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("file", "num_tasks", "chance"), [(EXAMPLES / "balanced-replay.yaml", 3, 100 / 6), ("rehearsal.yaml", 2, 50.0)]
)
def test_a_learner_outside_of_the_package_runs_and_answers(file: Path | str, num_tasks: int, chance: float) -> None:
    folder = run(file)
    result = result_of(folder)
    assert len(result["accuracy"]) == num_tasks
    assert result["metrics"]["ACC"] > 1.5 * chance

    model = dualnet.load(folder, trust=True)
    predictions = model.predict(images(3), top=2)
    assert len(predictions) == 3
    assert all(len(prediction.classes) == 2 and prediction.name in model.class_names for prediction in predictions)


def test_its_options_follow_on_the_command_line(error_line) -> None:
    folder = run("rehearsal.yaml", "--learner.lr", "0.05", "--benchmark.train_per_class", "10")
    assert "lr: 0.05" in (folder / "experiment.yaml").read_text()
    line = error_line("run", "rehearsal.yaml", "--learner.replay_size", 0, "--out", "other")
    assert "replay_size: 0 is not 1 or more" in line
    assert not Path("other").exists()


def test_a_learner_from_own_batches(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_batches.py"), run_name="__main__")
    accuracy = re.fullmatch(r"accuracy on all four classes: ([\d.]+) %\n", capsys.readouterr().out)
    assert accuracy is not None and float(accuracy[1]) > 90


# A benchmark outside of the package


@pytest.fixture
def arrays(here: Path) -> Path:
    """Four classes told by their colour, 60 training and 20 test images each, as `ArrayFile` reads them."""
    labels = np.arange(320) % 4
    colours = np.array([[99, 0, 0], [0, 99, 0], [0, 0, 99], [99, 99, 0]])
    noise = np.random.default_rng(0).integers(0, 156, (320, 3, 32, 32))
    images = (noise + colours[labels][:, :, None, None]).astype(np.uint8)
    np.savez(here / "images.npz", images=images, labels=labels, is_test=np.arange(320) >= 240)
    return here / "images.npz"


def test_a_benchmark_outside_of_the_package_runs_and_is_named_in_the_report(
    arrays: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(EXAMPLES / "array-file.yaml")
    result = result_of(folder)
    assert len(result["accuracy"]) == 2 and result["metrics"]["ACC"] > 75
    run(EXAMPLES / "array-file.yaml")
    assert "already finished" in capsys.readouterr().out
    assert cli.main(["report", "runs"]) == 0
    assert "array_file.ArrayFile" in capsys.readouterr().out
    assert cli.main(["show", str(folder)]) == 0
    assert "array_file.ArrayFile" in capsys.readouterr().out


def test_a_model_is_loaded_without_the_code_of_its_benchmark(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it needs no `trust`, and a folder that names some code cannot have it run."""
    folder = run(EXAMPLES / "array-file.yaml")
    for gone in [name for name in sys.modules if name == "array_file"]:
        monkeypatch.delitem(sys.modules, gone)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(EXAMPLES)])
    assert len(dualnet.load(folder).predict(images(2), task=0)) == 2
    assert "array_file" not in sys.modules


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "array_file.Array",
            "cannot import 'array_file.Array': array_file has no Array; did you mean array_file.ArrayFile?",
        ),
        ("no_such_module.ArrayFile", "is its folder on PYTHONPATH?"),
        ("array_file.Path", "no BenchmarkConfig"),
        ("..array_file", "cannot import"),
        ("broken_import.ArrayFile", "cannot import 'broken_import.ArrayFile' (module 'os' has no attribute 'nothing')"),
        ("array_fil", "not one of"),
    ],
)
def test_a_benchmark_that_cannot_be_used_is_one_line(
    name: str, problem: str, error_line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_import.py").write_text("import os\n\nos.nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    line = error_line("run", EXAMPLES / "array-file.yaml", "--benchmark.name", name, "--out", "other")
    assert "benchmark.name" in line and problem in line
    assert not Path("other").exists()


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("array_file.ArrayFile", ["benchmark:", "  name: array_file.ArrayFile", "  classes_per_task: 2  # int"]),
        ("rehearsal.Rehearsal", ["learner:", "  name: rehearsal.Rehearsal"]),
        (
            "latest.Latest",
            [
                "  memory:",
                "    slots: null  # int | None: in total; None: slots_per_class for each known class; 0: no memory",
            ],
        ),
        (
            "alignment_uniformity.AlignmentUniformity",
            [
                "    objective: alignment_uniformity.AlignmentUniformity  # loss of the slow phase",
                "      uniformity: 1.0  # float: weight of the uniformity term",
            ],
        ),
    ],
)
def test_the_options_of_what_is_outside_of_the_package_are_listed(
    name: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["list", name]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert not set(lines) - set(shown)


# docs/architecture.md


@pytest.fixture
def architecture() -> str:
    return (ROOT / "docs/architecture.md").read_text()


def test_the_layers_are_those_that_the_linter_holds(architecture: str) -> None:
    contract, *_ = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert "```\n" + "\n".join(contract["layers"]).replace("dualnet.", "") + "\n```" in architecture


def test_every_field_of_a_run_folder_is_explained() -> None:
    page = (ROOT / "docs/run-folder.md").read_text()
    folder = run("rehearsal.yaml", "--benchmark.train_per_class", "10", "--log_every", "1")
    experiment = yaml.safe_load((folder / "experiment.yaml").read_text())
    result = result_of(folder)
    tree = checkpoint.load(folder / "checkpoint", checkpoint.steps(folder / "checkpoint")[-1]).tree
    names = {*experiment, *experiment["stream"], *experiment["environment"], *result, *result["metrics"], *tree}
    names |= {name for event in log_of(folder) for name in (*event, event["event"])}
    assert not {name for name in names if f"`{name}`" not in page}
    assert not {path.name for path in folder.iterdir() if f"### {path.name}" not in page}


# The contract


def test_the_contract_is_found() -> None:
    assert len(contract.FOR_LEARNERS) > 15
    assert all(skipped <= set(contract.FOR_LEARNERS) for skipped in OUTSIDE.values())


@pytest.mark.parametrize(
    ("name", "check"),
    [(name, check) for name, not_held in OUTSIDE.items() for check in contract.FOR_LEARNERS if check not in not_held],
)
def test_a_learner_outside_of_the_package_keeps_the_contract(
    name: str, check: str, request: pytest.FixtureRequest
) -> None:
    contract.holds(check, request, name=name)


# Balanced replay


def test_without_balance_it_is_experience_replay(small_learner, stream, state_of, differing) -> None:
    balanced, plain = small_learner("balanced_replay.BalancedReplay", balance=0.0), small_learner("er")
    for batch in stream:
        losses, expected = balanced.observe(batch), plain.observe(batch)
        assert all(torch.equal(losses[name], expected[name]) for name in expected)
    assert differing(state_of(balanced), state_of(plain)) == {"shares"}


def test_shares_are_those_of_batch_and_replay(small_learner) -> None:
    learner = small_learner("balanced_replay.BalancedReplay", decay=0.5)
    learner.count(torch.tensor([0, 0, 0, 1]), torch.tensor([2, -1, -1, -1]))
    torch.testing.assert_close(learner.shares, torch.tensor([0.75, 0.25, 1.0, 0, 0, 0]) / 2)
    learner.count(torch.tensor([3, 3]), torch.tensor([-1, -1]))
    torch.testing.assert_close(learner.shares, torch.tensor([0.75, 0.25, 1.0, 2.0, 0, 0]) / 4)


def test_shares_follow_the_classes(small_learner, spec, random_batch) -> None:
    learner = small_learner("balanced_replay.BalancedReplay", spec=spec.task_free(), decay=0.5)
    learner.count(torch.tensor([0, 0, 0, 1]), torch.tensor([2, -1, -1, -1]))
    learner.add_classes(1)
    learner.remove_class(1)
    torch.testing.assert_close(learner.shares, torch.tensor([0.75, 1.0, 0, 0, 0, 0]) / 2)
    assert learner.observe(dualnet.Batch(random_batch(0).images, torch.tensor([5, 0, 5, 1])))["labels"].isfinite()


def test_the_bias_makes_up_for_the_shares(small_learner, spec) -> None:
    """Equal logits stay equal, however often each class comes: their gradient over the batch is none."""
    learner = small_learner("balanced_replay.BalancedReplay", spec=spec.task_free(), decay=0.0)
    labels = torch.tensor([0, 0, 0, 1])
    learner.count(labels, labels)
    logits = torch.zeros(4, spec.num_classes, requires_grad=True)
    log_shares = learner.balanced(logits, torch.zeros(4, dtype=torch.int64)).log_softmax(dim=1)
    log_shares[torch.arange(4), labels].mean().backward()
    assert logits.grad is not None
    assert logits.grad.sum(dim=0).abs().max() < 0.01


# The notebook


def test_the_tour_runs_from_its_first_cell_to_its_last(capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells are plain Python, which needs no Jupyter. They are stored without outputs."""
    pytest.importorskip("sklearn")
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    cells = [cell for cell in json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    for cell in cells:
        assert not cell["outputs"]
        exec("".join(cell["source"]), names)
        plt.close("all")
    printed = capsys.readouterr().out
    assert "24 of 24 other images are correct" in printed and "{'building': 100.0, 'petals': 100.0" in printed
