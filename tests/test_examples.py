"""The examples and the learner of CONTRIBUTING.md run as they are written, and keep to the learners' contract."""

from __future__ import annotations

import inspect
import json
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dualnet
from dualnet import cli

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
CONTRACT = runpy.run_path(str(ROOT / "tests/learners/test_contract.py"))
# Learners outside of the package, with the contract tests that do not hold for them.
OUTSIDE: dict[str, set[str]] = {
    "rehearsal.Rehearsal": set(),
    "balanced_replay.BalancedReplay": {
        "test_a_missing_label_is_a_missing_term_of_the_loss",  # expects plain cross-entropy
    },
}


def block(language: str) -> str:
    """The one block of that language in CONTRIBUTING.md."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
    return found


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of CONTRIBUTING.md; it and the examples are on the path. One thread: bits are compared."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warnings.showwarning", cli.show_warning)  # put back after the test
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(tmp_path)
    Path("rehearsal.py").write_text(block("python"))
    Path("rehearsal.yaml").write_text(block("yaml"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)


def run(file: Path | str, *options: str) -> Path:
    """The experiment by the command line; its run folder."""
    assert cli.main(["run", str(file), "--device", "cpu", *options]) == 0
    return Path("runs") / Path(file).stem / "seed-0"


def images(count: int, side: int = 32) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("file", "tasks"), [(EXAMPLES / "balanced-replay.yaml", 3), ("rehearsal.yaml", 2)], ids=str)
def test_a_learner_outside_of_the_package_runs_and_answers(file: Path | str, tasks: int) -> None:
    folder = run(file)
    result = json.loads((folder / "result.json").read_text())
    assert len(result["accuracy"]) == tasks
    chance = 100 / (2 * tasks)
    assert result["metrics"]["ACC"] > 1.5 * chance

    model = dualnet.load(folder)
    predictions = model.predict(images(3), top=2)
    assert len(predictions) == 3
    assert all(len(prediction.classes) == 2 and prediction.name in model.class_names for prediction in predictions)


def test_its_options_follow_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    run("rehearsal.yaml", "--learner.lr", "0.05")  # as CONTRIBUTING.md says
    assert "lr: 0.05" in Path("runs/rehearsal/seed-0/experiment.yaml").read_text()
    assert cli.main(["run", "rehearsal.yaml", "--learner.replay_size", "0", "--out", "other"]) == 2
    assert "replay_size: 0 is not 1 or more" in capsys.readouterr().err
    assert not Path("other").exists()


def test_a_learner_from_own_batches(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_batches.py"), run_name="__main__")
    accuracy = re.fullmatch(r"accuracy on all four classes: ([\d.]+) %\n", capsys.readouterr().out)
    assert accuracy is not None and float(accuracy[1]) > 90


# The contract


def is_for_learners(function: Any) -> bool:
    marks = getattr(function, "pytestmark", [])
    return any(mark.args[0] == "name" and set(mark.args[1]) <= set(dualnet.LEARNERS) for mark in marks)


def first_values(function: Any) -> dict[str, Any]:
    """The first of the values that a test runs with, for each of its arguments but `name`."""
    values: dict[str, Any] = {}
    for mark in function.pytestmark:
        names, choices = mark.args
        names, first = ((names,), (choices[0],)) if isinstance(names, str) else (names, choices[0])
        values |= dict(zip(names, first, strict=True))
    return {name: value for name, value in values.items() if name != "name"}


CHECKS = [name for name, function in CONTRACT.items() if name.startswith("test_") and is_for_learners(function)]


def test_the_contract_is_found() -> None:
    assert len(CHECKS) > 15
    assert all(skipped <= set(CHECKS) for skipped in OUTSIDE.values())


@pytest.mark.parametrize(
    ("learner", "check"), [(name, check) for name, not_held in OUTSIDE.items() for check in CHECKS if check not in not_held]
)
def test_a_learner_outside_of_the_package_keeps_the_contract(
    learner: str, check: str, request: pytest.FixtureRequest
) -> None:
    function: Callable[..., None] = CONTRACT[check]
    arguments = {"name": learner, **first_values(function)}
    fixtures = [name for name in inspect.signature(function).parameters if name not in arguments]
    function(**arguments, **{name: request.getfixturevalue(name) for name in fixtures})


# Balanced replay


def test_without_balance_it_is_experience_replay(small_learner, stream, state_of, differing) -> None:
    balanced, plain = small_learner("balanced_replay.BalancedReplay", balance=0.0), small_learner("er")
    for batch in stream:
        one, other = balanced.observe(batch), plain.observe(batch)
        assert all(torch.equal(one[name], other[name]) for name in other)
    assert differing(state_of(balanced), state_of(plain)) == {"shares"}


def test_shares_are_those_of_batch_and_replay(small_learner, spec) -> None:
    learner = small_learner("balanced_replay.BalancedReplay", decay=0.5)
    learner.count(torch.tensor([0, 0, 0, 1]), torch.tensor([2, -1, -1, -1]))
    torch.testing.assert_close(learner.shares, torch.tensor([0.75, 0.25, 1.0, 0, 0, 0]) / 2)
    learner.count(torch.tensor([3, 3]), torch.tensor([-1, -1]))
    torch.testing.assert_close(learner.shares, torch.tensor([0.75, 0.25, 1.0, 2.0, 0, 0]) / 4)


def test_the_bias_makes_up_for_the_shares(small_learner, spec) -> None:
    """Where logits know nothing but how often a class comes, the balanced loss has no gradient and so leaves them equal."""
    learner = small_learner("balanced_replay.BalancedReplay", spec=spec.task_free(), decay=0.0)
    labels = torch.tensor([0, 0, 0, 1])
    learner.count(labels, labels)
    logits = torch.zeros(4, spec.num_classes, requires_grad=True)
    log_shares = learner.balanced(logits, torch.zeros(4, dtype=torch.int64)).log_softmax(dim=1)
    log_shares[torch.arange(4), labels].mean().backward()
    assert logits.grad is not None
    assert logits.grad.sum(dim=0).abs().max() < 0.01
