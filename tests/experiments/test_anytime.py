"""Anytime accuracy: evaluations on the classes seen so far, against a stream that is followed by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_fixtures import CPU, KillAt, Killed, log_of, result_of, seeds_in

from dualnet.experiments import runner
from dualnet.experiments.stop import StopRequested
from dualnet.learners import make_learner
from dualnet.report.rows import compare
from dualnet.stream.stream import Stream

EVERY = 2
SHARP: dict[str, Any] = {"protocol": "task_free", "benchmark": {"num_tasks": 3}}
STREAMS: dict[str, dict[str, Any]] = {
    "sharp": SHARP,
    "task-aware": {**SHARP, "protocol": "task_aware"},
    "blurry": {**SHARP, "blurry": {"share": 0.5}},
    "few labels": {**SHARP, "labels": {"share": 0.3}},
    "late labels": {**SHARP, "labels": {"delay": 2}},
    "orders": {**SHARP, "benchmark": {"num_tasks": 3, "order_seed": "seed"}, "seed": 3},
}


def followed(experiment: Any) -> dict[int, tuple[int, float]]:
    """By step: how many classes had a label in the batches so far, and the accuracy on their test images."""
    benchmark = experiment.ordered_benchmark.make()
    blurry, labels = experiment.blurry, experiment.labels
    stream = Stream(benchmark, experiment.protocol, experiment.batch_size, CPU, labels, blurry=blurry)
    learner = make_learner(experiment.learner_name, stream.spec, experiment.learner, experiment.seed)
    accuracies, seen, step = {}, set(), 0
    for period in stream.periods:
        for batch in stream.batches(period, experiment.seed):
            learner.observe(batch)
            seen |= set() if batch.labels is None else set(batch.labels.tolist()) - {-1}
            step += 1
            right = []
            for task, (images, truths) in enumerate(task.test.load() for task in benchmark.tasks):
                told = torch.full_like(truths, task if experiment.protocol == "task_aware" else 0)
                answers = learner.predict(images, told)
                right += [a == t for a, t in zip(answers.tolist(), truths.tolist(), strict=True) if t in seen]
            if seen and step % EVERY == 0:
                accuracies[step] = len(seen), 100 * sum(right) / len(right)
    return accuracies


@pytest.mark.parametrize("kind", STREAMS)
def test_the_classes_seen_so_far_are_tested_every_k_steps(kind, quick_tiny, run, tmp_path: Path) -> None:
    experiment = quick_tiny("er", **STREAMS[kind], evaluate_every=EVERY)
    folder, expected = run(experiment, tmp_path / "seed"), followed(experiment)
    events = {event["step"]: (event["classes"], event["accuracy"]) for event in log_of(folder, "anytime")}
    assert events == {step: (classes, round(value, 4)) for step, (classes, value) in expected.items()}
    assert len({classes for classes, _ in events.values()}) > 1, "classes come over time"
    mean = sum(value for _, value in expected.values()) / len(expected)
    assert result_of(folder)["metrics"]["A_AUC"] == pytest.approx(mean)


def test_on_a_blurry_stream_classes_of_later_tasks_count_as_soon_as_they_come(quick_tiny, run, tmp_path) -> None:
    seen = {}
    for kind in ("sharp", "blurry"):
        folder = run(quick_tiny("er", **STREAMS[kind], evaluate_every=1), tmp_path / kind)
        seen[kind] = [event["classes"] for event in log_of(folder, "anytime")]
    assert max(seen["sharp"][:3]) == 2 < max(seen["blurry"][:3]) and seen["sharp"][-1] == seen["blurry"][-1] == 6


@pytest.mark.parametrize("name", ["er", "dualnet"])
def test_evaluating_changes_nothing(name, quick_tiny, run, run_state, tmp_path: Path) -> None:
    plain = run_state(run(quick_tiny(name), tmp_path / "plain"))
    evaluated = run_state(run(quick_tiny(name, evaluate_every=1), tmp_path / "evaluated"))
    evaluated["log"] = [event for event in evaluated["log"] if event["event"] != "anytime"]
    del evaluated["result"]["metrics"]["A_AUC"], evaluated[".anytime"], plain[".anytime"]
    assert evaluated == plain


def test_offline_is_evaluated_at_the_end_only(quick_tiny, run, tmp_path: Path) -> None:
    folder = run(quick_tiny("offline", evaluate_every=1), tmp_path)
    assert not log_of(folder, "anytime") and "A_AUC" not in result_of(folder)["metrics"]


def test_stopped_killed_and_resumed_equals_never_stopped(quick_tiny, run, stop_at, run_state, tmp_path) -> None:
    experiment = quick_tiny("er", **STREAMS["blurry"], evaluate_every=EVERY, checkpoint_every=3)
    whole = run_state(run(experiment, tmp_path / "whole"))
    for step in (2, 4, 5):
        with pytest.raises(StopRequested):
            run(experiment, tmp_path / "resumed", stop_at(step))
    with pytest.raises(Killed):
        run(experiment, tmp_path / "resumed", KillAt(whole["step"]))
    assert run_state(run(experiment, tmp_path / "resumed")) == whole


def test_side_by_side_equals_one_after_the_other(quick_tiny, run, run_state, tmp_path) -> None:
    experiment = quick_tiny("er", **STREAMS["blurry"], evaluate_every=EVERY)
    runner.run(seeds_in(tmp_path, experiment, 0, 1), CPU)
    alone = [run_state(run(experiment.with_seed(seed), tmp_path / f"alone-{seed}")) for seed in (0, 1)]
    assert [run_state(tmp_path / f"seed-{seed}") for seed in (0, 1)] == alone
    assert alone[0]["result"]["metrics"]["A_AUC"] != alone[1]["result"]["metrics"]["A_AUC"]


def test_how_often_is_part_of_the_experiment_and_seeds_form_one_row(quick_tiny, run, tmp_path: Path) -> None:
    for seed, every in ((0, 2), (1, 0)):
        run(quick_tiny("er", seed=seed, evaluate_every=every), tmp_path / f"seed-{seed}")
    with pytest.raises(ValueError, match="evaluate_every is 2 there, 3 here"):
        run(quick_tiny("er", evaluate_every=3), tmp_path / "seed-0")
    (row,) = compare([tmp_path]).rows
    assert [bool(run.log.anytime) for run in row.runs] == [True, False]
