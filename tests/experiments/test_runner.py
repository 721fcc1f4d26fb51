"""The runner: the protocol, the files that it writes, and what it refuses."""

import importlib
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import files, names_in
from run_fixtures import CPU, log_of, result_of, seeds_in

from dualnet import load, metrics
from dualnet.data.benchmark import Benchmark
from dualnet.engine import precision_on
from dualnet.experiments import checkpoint, evaluation, runner
from dualnet.experiments.run import DivergedError, Run, RunsDivergedError
from dualnet.experiments.run_folder import RunFolder
from dualnet.experiments.stop import StopRequested
from dualnet.experiments.training_loop import TrainingLoop
from dualnet.machine import choose_device
from dualnet.stream.stream import Stream


def test_what_a_run_leaves_behind(finished: Path) -> None:
    written = ["checkpoint", "classes.json", "experiment.yaml", "lock", "log.jsonl", "result.json"]
    assert names_in(finished) == written
    result = result_of(finished)
    of_the_machine = {"seconds", "seeds_side_by_side", "peak_memory_bytes"}
    assert set(result) == {"accuracy", "metrics", "steps", "cost"} | of_the_machine
    first, second = result["accuracy"]
    assert first[1] is None, "a task is not tested before it was learned"
    assert all(0 <= value <= 100 for value in (first[0], *second))
    summary = metrics.summary([[first[0], math.nan], second])
    assert result["metrics"] == summary and {"ACC", "FM", "LA"} <= set(summary)
    assert result["steps"] == 6 and result["seeds_side_by_side"] == 1
    assert 0 < result["seconds"] < 60 and result["peak_memory_bytes"] > 2**24
    # Six steps of one slow step on two views of four images, and one update with a batch and a replay of four; at the
    # end of each of the two tasks the four examples that are stored of it are answered.
    assert result["cost"] == {"forward_samples": 6 * (8 + 8) + 2 * 4, "backward_samples": 6 * (8 + 8)}


def test_the_last_checkpoint_is_the_model_that_was_evaluated(finished: Path, benchmark: Benchmark) -> None:
    """The accuracies again, image by image, by the loaded model."""
    model = load(finished)
    for task, accuracy in enumerate(result_of(finished)["accuracy"][-1]):
        images, labels = benchmark.tasks[task].test.load()
        names = [model.predict(image.unsqueeze(0), task)[0].name for image in images]
        right = [name == benchmark.class_names[label] for name, label in zip(names, labels, strict=True)]
        assert accuracy == 100 * sum(right) / len(right)


def test_the_log_tells_losses_and_evaluations(finished: Path) -> None:
    log = log_of(finished)
    events = [(event["event"], event["task"], event["step"]) for event in log]
    assert events == [
        *(("losses", 0, 2), ("losses", 0, 3), ("evaluation", 0, 3), ("memory", 0, 3)),
        *(("losses", 1, 4), ("losses", 1, 6), ("evaluation", 1, 6), ("memory", 1, 6)),
    ]
    losses = [set(event["losses"]) for event in log if "losses" in event]
    assert all(names >= {"labels", "replay", "slow"} for names in losses)
    assert [event["accuracy"] for event in log if "accuracy" in event] == [
        [value for value in row if value is not None] for row in result_of(finished)["accuracy"]
    ]
    seconds = [event["seconds"] for event in log]
    assert seconds == sorted(seconds)


def test_a_line_of_the_log_is_the_mean_since_the_last(tiny, run, finished: Path, tmp_path: Path) -> None:
    """And neither the lines nor the learning depend on how often a checkpoint is made."""
    each = log_of(run(tiny(log_every=1, checkpoint_every=100), tmp_path))
    by_step = {event["step"]: event["losses"] for event in each if "losses" in event}
    assert sorted(by_step) == [1, 2, 3, 4, 5, 6]
    for event, steps in zip((e for e in log_of(finished) if "losses" in e), ([1, 2], [3], [4], [5, 6]), strict=True):
        for name, value in event["losses"].items():
            assert value == pytest.approx(sum(by_step[step][name] for step in steps) / len(steps), rel=1e-5)


def test_a_finished_folder_is_left_alone(tiny, finished: Path) -> None:
    before = files(finished)
    assert runner.run({finished: tiny()}, CPU) == [finished]
    assert files(finished) == before


def test_seeds_and_learners_side_by_side_equal_each_alone(tiny, run, run_state, never_stopped, tmp_path) -> None:
    others = {"seed-1": tiny(seed=1), "er": tiny("er"), "mir": tiny("mir")}
    runner.run({tmp_path / name: experiment for name, experiment in {"seed-0": tiny(), **others}.items()}, CPU)
    assert run_state(tmp_path / "seed-0") == never_stopped
    for name, experiment in others.items():
        assert result_of(tmp_path / name)["seeds_side_by_side"] == 4
        assert run_state(tmp_path / name) == run_state(run(experiment, tmp_path / "alone" / name))


def test_runs_with_other_steps_are_trained_one_after_the_other(tiny, tmp_path) -> None:
    others = {"late": tiny("er", labels={"delay": 1}), "offline": tiny("offline"), "bf16": tiny("er", precision="bf16")}
    runner.run({tmp_path / name: experiment for name, experiment in {"er": tiny("er"), **others}.items()}, CPU)
    assert {result_of(folder)["seeds_side_by_side"] for folder in tmp_path.iterdir()} == {1}


def test_a_checkpoint_written_behind_holds_the_state_of_its_step(
    tiny, run, stop_at, run_state, never_stopped, tmp_path, monkeypatch
) -> None:
    """As on CUDA: steps go on while a slow disk is written to."""
    write, behind = checkpoint.write, []

    def slow_write(folder: Path, step: int, *rest: Any) -> None:
        deadline = time.monotonic() + 60  # not reached while steps go on, however busy the machine is
        while not behind and time.monotonic() < deadline:
            behind.extend(event for event in log_of(folder.parent) if event["step"] > step)
            time.sleep(0.01)
        write(folder, step, *rest)

    monkeypatch.setattr(checkpoint, "write", slow_write)
    monkeypatch.setattr(TrainingLoop, "writes_in_background", True)
    with pytest.raises(StopRequested):
        run(tiny(), tmp_path / "run", stop_at(4))
    assert run_state(run(tiny(), tmp_path / "run")) == never_stopped
    assert behind, "nothing went on"


def test_a_checkpoint_that_cannot_be_written_behind_stops_the_run(tiny, run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoint, "write", no_room)
    monkeypatch.setattr(TrainingLoop, "writes_in_background", True)
    with pytest.raises(OSError, match="no room"):
        run(tiny(), tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("written", [True, False])
def test_a_run_that_diverges_while_a_checkpoint_is_written(written, tiny, run, tmp_path, monkeypatch):
    write = checkpoint.write

    def slow_write(*arguments) -> None:
        time.sleep(0.2)
        write(*arguments) if written else no_room()

    monkeypatch.setattr(checkpoint, "write", slow_write)
    monkeypatch.setattr(TrainingLoop, "writes_in_background", True)
    monkeypatch.setattr(Run, "flush_losses", diverge_after(Run.flush_losses, step=4))
    with pytest.raises(RunsDivergedError if written else OSError) as caught:
        run(tiny(checkpoint_every=3), tmp_path / "run")
    if written:
        assert "not finite at step 4; use a lower learner.lr" in str(caught.value)
        assert log_of(tmp_path / "run")[-1]["checkpoint"] == 3


def no_room(*_) -> None:
    raise OSError("no room")


def diverge_after(flush_losses, step: int):
    def diverged(run: Run) -> dict[str, float]:
        if run.step >= step:
            raise DivergedError("loss 'labels' is not finite")
        return flush_losses(run)

    return diverged


def test_seeds_that_stopped_at_different_places_go_on(tiny, run, stop_at, tmp_path, run_state):
    for seed, step in ((0, 4), (1, 2)):
        with pytest.raises(StopRequested):
            run(tiny(seed=seed), tmp_path / f"seed-{seed}", stop_at(step))
    runner.run(seeds_in(tmp_path, tiny(), 0, 1), CPU)
    assert run_state(tmp_path / "seed-1") == run_state(run(tiny(seed=1), tmp_path / "alone"))


def test_the_folder_is_free_after_the_run(tiny, run, tmp_path: Path) -> None:
    with RunFolder(run(tiny("finetune"), tmp_path)).locked():
        pass


def test_another_experiment_is_refused_before_any_seed_runs(tiny, run, finished: Path, tmp_path) -> None:
    run(tiny("finetune", seed=1), tmp_path / "seed-1")
    before = files(tmp_path)
    with pytest.raises(ValueError, match=r"seed-1: holds another experiment \(learner.name is finetune there, er here"):
        runner.run(seeds_in(tmp_path, tiny("er"), 0, 1), CPU)
    assert files(tmp_path) == before, "not even the folder of seed 0 was made"
    with pytest.raises(ValueError, match="holds another experiment"):
        run(tiny("er"), finished)


def test_a_learner_that_refuses_leaves_no_folder(tiny, run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too small"):
        run(tiny(benchmark={"image_size": 16}), tmp_path / "seed-0")
    assert list(tmp_path.iterdir()) == []


def test_another_device_is_refused(tiny, run, stopped: Path) -> None:
    step, state, _ = checkpoint.newest(stopped / "checkpoint") or (0, {}, "")
    checkpoint.write(stopped / "checkpoint", step, checkpoint.snapshot({**state, "device": "cuda"}))
    with pytest.raises(ValueError, match="cuda"):
        run(tiny(), stopped)


def test_a_learner_whose_code_has_changed_is_refused(own_learner: str, tiny, run, stop_at, tmp_path: Path) -> None:
    with pytest.raises(StopRequested):
        run(tiny(own_learner), tmp_path / "run", stop_at(2))
    changed = (tmp_path / "own_module.py").read_text().replace("self.weight", "self.weights")
    (tmp_path / "own_module.py").write_text(changed)
    importlib.invalidate_caches()
    del sys.modules["own_module"]
    with pytest.raises(ValueError, match="does not match the learner"):
        run(tiny(own_learner), tmp_path / "run")


def finite(folder: Path) -> bool:
    states = [checkpoint.load(folder / "checkpoint", step).tree for step in checkpoint.steps(folder / "checkpoint")]
    floats = (tensor for state in states for tensor in state["learner"].values() if tensor.is_floating_point())
    return all(bool(tensor.isfinite().all()) for tensor in floats)


@pytest.mark.parametrize(
    ("breaks", "every", "message", "saved"),
    [
        ({"loss_breaks_at": 1}, 1, "loss 'labels' is not finite at step 1", None),
        ({"loss_breaks_at": 5}, 4, "loss 'labels' is not finite at step 6", 4),
        ({"loss_breaks_at": 6}, 1, "loss 'labels' is not finite at step 6", 5),
        ({"weight_breaks_at": 1}, 1, "the weights are not finite at step 1", None),
        ({"weight_breaks_at": 3}, 1, "the weights are not finite at step 3", 2),
        ({"weight_breaks_at": 5}, 1, "the weights are not finite at step 5", 4),
        ({"weight_breaks_at": 6}, 1, "the weights are not finite at step 6", 5),
    ],
)
def test_what_is_not_finite_is_never_saved(breaks, every, message, saved, own_learner: str, tiny, run, tmp_path):
    """Nor is it a result, even at the last step. The next start says the same, without a step."""
    experiment = tiny({"name": own_learner, **breaks}, log_every=100, checkpoint_every=every)
    for _ in range(2):
        with pytest.raises(RunsDivergedError, match=f"{tmp_path}/run: {message};"):
            run(experiment, tmp_path / "run")
        assert finite(tmp_path / "run") and log_of(tmp_path / "run")[-1]["checkpoint"] == saved
        assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("breaks", [{"loss_breaks_at": 5}, {"weight_breaks_at": 5}])
def test_a_seed_that_diverges_leaves_the_others_alone(breaks, own_learner: str, tiny, run, run_state, tmp_path) -> None:
    learner = {"name": own_learner, "only_seed": 1, **breaks}
    folders = {seed: tmp_path / f"seed-{seed}" for seed in (0, 1, 2)}
    message = r"seed-1: .* not finite at step 6; use a lower learner.lr"
    with pytest.raises(RunsDivergedError, match=message) as caught:
        runner.run(seeds_in(tmp_path, tiny(learner, checkpoint_every=4), 0, 1, 2), CPU)
    (line,) = caught.value.lines
    assert line.startswith(f"{folders[1]}: ")
    assert log_of(folders[1])[-1]["event"] == "diverged" and not (folders[1] / "result.json").exists()
    assert finite(folders[1])
    for seed in (0, 2):
        alone = run(tiny(learner, seed=seed, checkpoint_every=4), tmp_path / "alone" / str(seed))
        assert run_state(folders[seed]) == run_state(alone)
        assert result_of(folders[seed])["seeds_side_by_side"] == 3


def test_where_all_seeds_diverge_all_are_named(own_learner: str, tiny, tmp_path) -> None:
    runs = seeds_in(tmp_path, tiny({"name": own_learner, "loss_breaks_at": 1}), 0, 1)
    with pytest.raises(RunsDivergedError) as caught:
        runner.run(runs, CPU)
    assert [line.partition(": loss")[0] for line in caught.value.lines] == [str(folder) for folder in runs]


@pytest.mark.parametrize(("protocol", "ends"), [("task_aware", 2), ("task_free_boundaries", 2), ("task_free", 0)])
def test_only_some_protocols_tell_the_end_of_a_task(protocol, ends, own_learner, tiny, run, tmp_path: Path) -> None:
    folder = run(tiny(own_learner, protocol=protocol), tmp_path / "run")
    _, state, _ = checkpoint.newest(folder / "checkpoint") or (0, {}, "")
    assert state["learner"]["task_ends"] == ends
    assert state["learner"]["steps"] == 6


@pytest.mark.filterwarnings("ignore:--precision bf16")  # of a processor without its instructions
def test_bf16_on_the_cpu_is_taken_at_its_word(tiny, run, tmp_path: Path) -> None:
    run(tiny("finetune", precision="bf16"), tmp_path)
    assert result_of(tmp_path)["steps"] == 6


def test_precision_and_device() -> None:
    assert precision_on(CPU) == "fp32" and precision_on(torch.device("cuda")) == "bf16"
    assert precision_on(torch.device("cuda"), "fp32") == "fp32"
    assert choose_device("cpu") == CPU


def test_cuda_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    with pytest.raises(ValueError, match=r"^--device cuda: .*--device cpu"):
        choose_device("cuda")


def test_position_is_where_the_next_batch_is(benchmark: Benchmark) -> None:
    stream = Stream(benchmark, "task_aware", 5, CPU)
    places = [(task, number) for task in range(2) for number in range(len(stream.periods[task].steps))]
    assert [stream.position(step) for step in range(stream.num_steps + 1)] == [*places, (2, 0)]


@pytest.mark.parametrize("protocol", ["task_free", "task_free_boundaries"])
def test_a_task_free_stream_tells_no_task(protocol: Any, benchmark: Benchmark) -> None:
    stream = Stream(benchmark, protocol, 5, CPU)
    assert stream.spec.class_mask.tolist() == [[True] * 4]
    assert next(stream.batches(stream.periods[1], seed=0)).task_ids.tolist() == [0] * 5
    assert stream.num_tasks == 2, "it is evaluated task by task all the same"


@pytest.mark.parametrize("size", [1, 3, 500])
def test_accuracy_does_not_depend_on_the_parts(size: int, finished: Path, benchmark, monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "EVALUATION_SIZE", size)
    learner = load(finished).learner
    stream = Stream(benchmark, "task_aware", 4, CPU)
    accuracies = [float(evaluation.accuracy(learner.logits, *stream.test_set(task))) for task in range(2)]
    assert accuracies == result_of(finished)["accuracy"][-1]


def test_a_learner_that_needs_boundaries_is_told_where_there_are_none(tiny, run, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"^protocol: task_free .*dualnet .* learner\.soft_labels\.when insertion"):
        run(tiny("dualnet", protocol="task_free"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_fault_in_a_learner_keeps_its_traceback(tiny, run, tmp_path, monkeypatch) -> None:
    def faulty(self, batch):
        first, second = [1, 2, 3]
        return {first: second}

    monkeypatch.setattr("dualnet.learners.er.ER.learn", faulty)
    with pytest.raises(RuntimeError, match="tiny seed 0 failed at step 1") as caught:
        run(tiny("er"), tmp_path)
    assert "too many values to unpack" in str(caught.value.__cause__)


def test_how_often_a_run_writes_may_change_when_it_goes_on(tiny, run, stop_at, run_state, tmp_path) -> None:
    whole = run_state(run(tiny(log_every=4), tmp_path / "whole"))
    with pytest.raises(StopRequested):
        run(tiny(log_every=4), tmp_path / "stopped", stop_at(3))
    assert run_state(run(tiny(log_every=4, checkpoint_every=100), tmp_path / "stopped")) == whole
