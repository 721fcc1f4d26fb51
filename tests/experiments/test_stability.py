"""Evaluations of earlier tasks during training: their values, that they change nothing, and that they resume."""

import math
from pathlib import Path

import pytest
import torch
from run_fixtures import CPU, log_of, result_of

from dualnet import load
from dualnet.experiments import evaluation
from dualnet.experiments.stop import StopRequested
from dualnet.metrics import stability_summary
from dualnet.stream import stream as stream_module
from dualnet.stream.stream import Stream

THREE_TASKS = {"num_tasks": 3}


@pytest.fixture(scope="module")
def watched(tmp_path_factory, quick_tiny, run) -> Path:
    """Three tasks of three steps, with an evaluation of earlier tasks every second step. Not to be written to."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("watched") / "seed-0"
    return run(quick_tiny("er", benchmark=THREE_TASKS, stability_every=2), folder)


def test_every_earlier_task_is_measured_every_k_steps(watched: Path) -> None:
    events = [(event["step"], event["task"], len(event["accuracy"])) for event in log_of(watched, "stability")]
    assert events == [(4, 1, 1), (6, 1, 1), (8, 2, 2)], "nothing is earlier than the first task"


def test_the_last_look_of_a_task_is_its_evaluation(quick_tiny, run, tmp_path: Path) -> None:
    """The test sets are smaller than a probe, so both use the same images."""
    folder = run(quick_tiny("er", benchmark=THREE_TASKS, stability_every=3), tmp_path)
    evaluated = {event["step"]: event["accuracy"][:-1] for event in log_of(folder, "evaluation")[1:]}
    assert {event["step"]: event["accuracy"] for event in log_of(folder, "stability")} == evaluated


def test_the_worst_case_is_in_the_result(watched: Path) -> None:
    rows = [event["accuracy"] + [math.nan] * (3 - len(event["accuracy"])) for event in log_of(watched, "stability")]
    worst = [min(row[0] for row in rows), rows[-1][1]]
    metrics = result_of(watched)["metrics"]
    last = result_of(watched)["accuracy"][-1][-1]
    assert metrics["min-ACC"] == pytest.approx(sum(worst) / 2)
    assert metrics["WC-ACC"] == pytest.approx((last + sum(worst)) / 3)
    assert {key: metrics[key] for key in ("min-ACC", "WC-ACC")} == stability_summary(
        result_of(watched)["accuracy"], rows
    )


def test_what_was_never_measured_has_no_worst_case(quick_tiny, run, tmp_path: Path) -> None:
    folder = run(quick_tiny("er", benchmark=THREE_TASKS, stability_every=4), tmp_path)
    assert [len(event["accuracy"]) for event in log_of(folder, "stability")] == [1, 2]
    metrics = result_of(run(quick_tiny("er", benchmark=THREE_TASKS, stability_every=5), tmp_path / "5"))["metrics"]
    assert metrics["min-ACC"] is None and metrics["WC-ACC"] is None and metrics["ACC"] is not None


def test_without_the_option_nothing_is_measured(finished: Path) -> None:
    assert not log_of(finished, "stability")
    assert set(result_of(finished)["metrics"]) == {"ACC", "FM", "LA", "AIA", "BWT"}


@pytest.mark.parametrize("name", ["er", "dualnet"])
def test_looking_changes_nothing(name, quick_tiny, run, run_state, tmp_path: Path) -> None:
    """Weights, statistics, memory, generator, losses, accuracies, cost: bit by bit those of a run without them."""
    plain = run_state(run(quick_tiny(name), tmp_path / "plain"))
    looked = run_state(run(quick_tiny(name, stability_every=1), tmp_path / "looked"))
    looked["log"] = [event for event in looked["log"] if event["event"] != "stability"]
    for key in ("min-ACC", "WC-ACC"):
        del looked["result"]["metrics"][key]
    assert plain.pop(".stability") != looked.pop(".stability")
    assert looked == plain


@pytest.mark.parametrize("step", [4, 7])
def test_stopped_and_resumed_equals_never_stopped(step, quick_tiny, run, stop_at, run_state, watched, tmp_path) -> None:
    experiment = quick_tiny("er", benchmark=THREE_TASKS, stability_every=2)
    with pytest.raises(StopRequested):
        run(experiment, tmp_path, stop_at(step))
    assert run_state(run(experiment, tmp_path)) == run_state(watched)


def test_a_look_is_at_the_same_few_test_images(benchmark, finished: Path, monkeypatch) -> None:
    monkeypatch.setattr(stream_module, "PROBE_SIZE", 3)
    task_aware, task_free = (Stream(benchmark, protocol, 4, CPU) for protocol in ("task_aware", "task_free"))
    learner = load(finished).learner
    for task in range(2):
        images, labels, task_ids = task_aware.probe(task)
        assert len(labels) == 3 and torch.equal(images, task_free.probe(task)[0])
        tests, truths = benchmark.tasks[task].test.load()
        places = [int((tests == image).flatten(1).all(dim=1).nonzero()) for image in images]
        assert len(set(places)) == 3 and labels.tolist() == truths[places].tolist()
        right = learner.logits(images, torch.full((3,), task)).argmax(dim=1) == labels
        accuracy = evaluation.accuracy(learner.logits, images, labels, task_ids)
        assert float(accuracy) == pytest.approx(100 * right.double().mean().item())


def test_an_accuracy_stays_on_the_device(finished: Path, benchmark, synchronising) -> None:
    """So that the evaluation of many tasks waits for the device once."""
    stream, learner = Stream(benchmark, "task_aware", 4, CPU), load(finished).learner
    probe = stream.probe(0)
    assert not synchronising(lambda: evaluation.accuracy(learner.logits, *probe))
