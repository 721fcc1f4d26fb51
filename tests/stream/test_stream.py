"""Streams of every kind as batches, and whole runs on them: every learner, stopped and resumed, killed and resumed."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_fixtures import CPU, KillAt, Killed, log_of, result_of

import dualnet.stream.stream as stream_module
from dualnet import load
from dualnet.batch import UNLABELLED, Batch
from dualnet.data.benchmark import Benchmark
from dualnet.data.procedural import Procedural
from dualnet.experiments import checkpoint
from dualnet.experiments.stop import StopRequested
from dualnet.learners import LEARNERS
from dualnet.stream.schedule import LabelsConfig
from dualnet.stream.stream import Stream, shuffled

KINDS: dict[str, dict[str, Any]] = {
    "in time": {},
    "sample": {"share": 0.5},
    "batch": {"share": 0.5, "drawn_per": "batch"},
    "delay": {"delay": 2},
    "spread": {"delay": 1, "delay_spread": 3},
    "few and late": {"share": 0.6, "delay": 1, "delay_spread": 2},
    "few batches and late": {"share": 0.6, "drawn_per": "batch", "delay": 2},
}
STREAMING = [name for name in LEARNERS if name != "offline"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def make_stream(benchmark: Benchmark, kind: str = "in time", protocol: Any = "task_aware", **options: Any) -> Stream:
    return Stream(benchmark, protocol, 4, CPU, LabelsConfig(**KINDS[kind]), **options)


def batches_of(stream: Stream, seed: int) -> list[Batch]:
    return [batch for period in stream.periods for batch in stream.batches(period, seed)]


def known(batch: Batch) -> dict[bytes, tuple[int, int]]:
    """Images that come with a label: label and task id."""
    if batch.labels is None:
        return {}
    rows = zip(batch.images, batch.labels.tolist(), batch.task_ids.tolist(), strict=True)
    return {image.numpy().tobytes(): (label, task) for image, label, task in rows if label != UNLABELLED}


def truth(benchmark: Benchmark) -> dict[bytes, tuple[int, int]]:
    places: dict[bytes, tuple[int, int]] = {}
    for number, task in enumerate(benchmark.tasks):
        images, labels = task.train.load()
        places |= {
            image.numpy().tobytes(): (label, number) for image, label in zip(images, labels.tolist(), strict=True)
        }
    return places


def equal(batch: Batch, other: Batch) -> bool:
    fields = [(getattr(batch, name), getattr(other, name)) for name in ("images", "labels", "task_ids")]
    return all(a is b is None or (a is not None and torch.equal(a, b)) for a, b in fields)


# Batches


@pytest.mark.parametrize("protocol", ["task_aware", "task_free"])
def test_classes_may_come_again_in_every_task(protocol, benchmark) -> None:
    """Domain-incremental: each task has images of its own, of the same classes."""
    tasks = [
        dataclasses.replace(
            task,
            train=dataclasses.replace(task.train, labels=task.train.labels % 2),
            test=dataclasses.replace(task.test, labels=task.test.labels % 2),
        )
        for task in benchmark.tasks
    ]
    spec = dataclasses.replace(benchmark.spec, class_mask=torch.ones(len(tasks), 2, dtype=torch.bool))
    same = Benchmark(spec, tasks, benchmark.class_names[:2])
    stream, expected = make_stream(same, protocol=protocol), truth(same)
    for number, period in enumerate(stream.periods):
        taught = [item for batch in stream.batches(period, seed=0) for item in known(batch).items()]
        wanted = {image: (label, task) for image, (label, task) in expected.items() if task == number}
        assert {image: label for image, (label, _) in taught} == {image: label for image, (label, _) in wanted.items()}
        assert {task for _, (_, task) in taught} == {number if protocol == "task_aware" else 0}
        assert stream.test_set(number)[1].tolist() == tasks[number].test.labels.tolist()


@every_kind
def test_a_label_comes_once_and_belongs_to_its_image_and_task(kind, benchmark) -> None:
    everything = truth(benchmark)
    assert len(everything) == 24
    stream = make_stream(benchmark, kind)
    taught = [item for batch in batches_of(stream, seed=3) for item in known(batch).items()]
    assert all(batch.labels is None or known(batch) for batch in batches_of(stream, seed=3)), "None: there is no label"
    assert all(everything[image] == labelled for image, labelled in taught)
    assert len(dict(taught)) == len(taught)
    assert len(taught) == 24 if KINDS[kind].get("share", 1) == 1 else 0 < len(taught) < 24
    images = [image.numpy().tobytes() for batch in batches_of(stream, seed=3) for image in batch.images]
    assert set(images) == set(everything), "labelled or not, every image comes"


@every_kind
def test_seeds_have_equal_shapes_and_other_examples(kind, benchmark) -> None:
    stream = make_stream(benchmark, kind)
    first, second = batches_of(stream, seed=0), batches_of(stream, seed=1)
    shapes = [[(batch.images.shape, batch.labels is None) for batch in batches] for batches in (first, second)]
    assert shapes[0] == shapes[1]
    labelled = [{image for batch in batches for image in known(batch)} for batches in (first, second)]
    assert KINDS[kind].get("share", 1) == 1 or labelled[0] != labelled[1], "which samples are labelled is the seed's"


def test_every_seed_and_task_has_an_order_of_its_own() -> None:
    """Also a seed whose sum with a task, in the 32 bits that PyTorch's generator uses, is that of seed 0."""
    inverse = pow(1_000_003, -1, 2**32)
    seeds = [*range(51), 999, 1000, 4295, 2**31, 2**32 - 1, *(7 * n * inverse % 2**32 for n in range(1, 30))]
    orders = {tuple(shuffled(40, seed, task).tolist()) for seed in seeds for task in range(301)}
    assert len(orders) == len(seeds) * 301
    assert all(shuffled(5, seed, 2).sort().values.tolist() == [0, 1, 2, 3, 4] for seed in seeds)


def test_the_orders_of_small_seeds_stay() -> None:
    """Published results must stay reproducible."""
    assert [shuffled(6, seed, 3).tolist() for seed in (0, 999)] == [[4, 0, 3, 2, 1, 5], [3, 0, 2, 4, 5, 1]]


def test_no_epoch_has_the_order_of_a_task(benchmark, monkeypatch) -> None:
    numbers: list[int] = []

    def told(size: int, seed: int, number: int) -> torch.Tensor:
        numbers.append(number)
        return shuffled(size, seed, number)

    monkeypatch.setattr(stream_module, "shuffled", told)
    make_stream(benchmark, epochs_over_all=4).order(seed=1)
    assert len(numbers) == 2 + 4 == len(set(numbers))


@every_kind
def test_the_stream_follows_from_seed_and_step(kind, benchmark) -> None:
    """A process that starts in the middle gets the same batches: earlier steps and other seeds have no effect."""
    stream, fresh = make_stream(benchmark, kind), make_stream(benchmark, kind)
    expected = batches_of(stream, seed=5)
    batches_of(fresh, seed=6)
    for step in reversed(range(stream.num_steps)):
        period, number = fresh.position(step)
        assert equal(next(fresh.batches(fresh.periods[period], 5, number)), expected[step])


def test_no_seed_repeats_the_order_of_another_seed_task_or_pass() -> None:
    """Seeds that share an order are not independent repetitions, though their runs differ."""
    benchmark = Procedural(num_tasks=4, classes_per_task=2, train_per_class=10, test_per_class=1, image_size=8).make()
    stream, seeds = make_stream(benchmark), range(6)
    one_by_one = [tuple((part % 20).tolist()) for seed in seeds for part in stream.order(seed).split(20)]
    assert len(set(one_by_one)) == len(one_by_one) == 6 * 4
    mixed = make_stream(benchmark, epochs_over_all=3)
    passes = []
    for seed in seeds:  # a pass shuffles the seed's own order: compare the shuffles
        place = stream.order(seed).argsort()
        passes += [tuple(place[part].tolist()) for part in mixed.order(seed).split(80)]
    assert len(set(passes)) == len(passes) == 6 * 3


def test_every_sample_has_the_same_chance_of_a_label(benchmark) -> None:
    stream, seeds, counts = make_stream(benchmark, "sample"), 200, torch.zeros(24)
    kept = torch.cat([step.positions[step.labelled] for period in stream.periods for step in period.steps])
    for seed in range(seeds):
        counts[stream.order(seed)[kept]] += 1
    for task in (0, 1):
        share = ((kept >= 12 * task) & (kept < 12 * task + 12)).sum().item() / 12
        spread = (share * (1 - share) / seeds) ** 0.5
        assert ((counts[12 * task : 12 * task + 12] / seeds - share).abs() < 4.5 * spread).all()


def test_a_batch_of_late_labels_mixes_tasks(benchmark) -> None:
    mixed = [batch.task_ids.unique().tolist() for batch in batches_of(make_stream(benchmark, "spread"), seed=0)]
    assert [0, 1] in mixed
    free = batches_of(make_stream(benchmark, "spread", "task_free"), seed=0)
    assert {int(number) for batch in free for number in batch.task_ids} == {0}


@pytest.mark.parametrize("kind", ["in time", "spread"])
def test_images_are_read_where_they_lie(kind, benchmark, tmp_path: Path) -> None:
    """From a memory map, and from tasks that do not share an array: the same batches."""
    tasks = []
    for number, task in enumerate(benchmark.tasks):
        file = tmp_path / f"{number}.npy"
        np.save(file, task.train.array[task.train.rows])
        rows = np.arange(len(task.train))
        train = dataclasses.replace(task.train, array=np.load(file, mmap_mode="r"), rows=rows)
        tasks.append(dataclasses.replace(task, train=train))
    mapped = make_stream(dataclasses.replace(benchmark, tasks=tasks), kind)
    expected = batches_of(make_stream(benchmark, kind), seed=2)
    assert all(equal(batch, wanted) for batch, wanted in zip(batches_of(mapped, seed=2), expected, strict=True))


@every_kind
@pytest.mark.parametrize("epochs", [0, 2])
def test_images_on_the_device_are_the_same(kind, epochs, benchmark) -> None:
    """As a GPU has them: those of the tasks that a period needs, in one tensor."""
    stream = make_stream(benchmark, kind, epochs_over_all=epochs)
    expected = batches_of(stream, seed=7)
    stream.reads_in_place = False
    batches = batches_of(stream, seed=7)
    assert all(equal(batch, wanted) for batch, wanted in zip(batches, expected, strict=True))
    assert stream.window is not None
    assert stream.window[:2] == ((1, 1) if not epochs and "delay" not in KINDS[kind] else (0, 1)), "no more than needed"


# All tasks together


def test_all_tasks_are_mixed(benchmark) -> None:
    stream = make_stream(benchmark, epochs_over_all=3)
    assert stream.num_steps == 18 and len(stream.periods) == 1
    batches, everything = batches_of(stream, seed=1), truth(benchmark)
    orders = []
    for epoch in range(3):
        part = batches[6 * epoch : 6 * (epoch + 1)]
        assert {image: value for batch in part for image, value in known(batch).items()} == everything
        assert sum(len(batch) for batch in part) == 24
        orders.append(torch.cat([batch.images for batch in part]).numpy().tobytes())
    assert len(set(orders)) == 3, "each pass has an order of its own"
    assert any(len(batch.task_ids.unique()) == 2 for batch in batches)


@pytest.mark.parametrize("kind", ["sample", "batch"])
def test_all_together_has_the_labels_that_a_streaming_learner_has(kind, benchmark) -> None:
    streamed = [known(batch) for batch in batches_of(make_stream(benchmark, kind), seed=4)]
    mixed = [known(batch) for batch in batches_of(make_stream(benchmark, kind, epochs_over_all=2), seed=4)]
    assert {image for batch in streamed for image in batch} == {image for batch in mixed for image in batch}


# Whole runs


# In time: test_resume.py. What a kind does to a stream does not depend on the learner: it sees partly labelled batches.
@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "sample") for name in STREAMING), ("er", "delay"), *(("dualnet", kind) for kind in ("batch", "spread"))],
)
def test_every_learner_on_every_stream_resumes(name, kind, quick_tiny, run, stop_at, run_state, tmp_path) -> None:
    experiment = quick_tiny(name, labels=KINDS[kind], log_every=4, checkpoint_every=100)
    whole = run_state(run(experiment, tmp_path / "whole"))
    assert whole["result"]["accuracy"][0][1] is None and whole["result"]["metrics"]["LA"] is not None
    with pytest.raises(StopRequested):
        run(experiment, tmp_path / "stopped", stop_at(5))
    assert run_state(run(experiment, tmp_path / "stopped")) == whole


@pytest.mark.parametrize("kind", ["few and late", "sample"])
def test_killed_between_two_checkpoints(kind, quick_tiny, run, run_state, tmp_path) -> None:
    experiment = quick_tiny(labels=KINDS[kind], checkpoint_every=3)
    whole = run_state(run(experiment, tmp_path / "whole"))
    for step in (1, 2, 4, 5, whole["step"]):
        with pytest.raises(Killed):
            run(experiment, tmp_path / "killed", KillAt(step))
    assert run_state(run(experiment, tmp_path / "killed")) == whole


@pytest.mark.parametrize(("name", "kind"), [("er", "sample"), ("derpp", "few and late"), ("mir", "batch")])
def test_a_memory_holds_labelled_examples_alone(name, kind, quick_tiny, benchmark, run, tmp_path) -> None:
    folder = run(quick_tiny(name, labels=KINDS[kind]), tmp_path)
    _, state, _ = checkpoint.newest(folder / "checkpoint") or (0, {}, "")
    stream = make_stream(benchmark, kind)
    given = {image: value for batch in batches_of(stream, seed=0) for image, value in known(batch).items()}
    memory = {key.removeprefix("memory."): value for key, value in state["learner"].items() if "memory." in key}
    held = memory["filled"].nonzero().flatten().tolist()
    assert held and int(memory["seen"].sum()) == len(given)
    for slot in held:
        image, label, task = (memory[field][slot] for field in ("images", "labels", "task_ids"))
        assert given[image.numpy().tobytes()] == (int(label), int(task))
        assert bool(memory["has_logits"][slot]) == (name == "derpp")


def test_images_without_labels_teach_the_slow_learner_alone(quick_tiny, run, tmp_path) -> None:
    def losses(name: str) -> list[set[str]]:
        folder = run(quick_tiny(name, labels={"delay": 2}, log_every=1), tmp_path / name)
        return [set(event["losses"]) for event in log_of(folder, "losses")]

    late = [False, False, False, True, False, True, False, True, False, True, True, True]
    assert [("labels" in names, "slow" in names) for names in losses("dualnet")][:3] == [(False, True)] * 3
    assert [bool(names) for names in losses("er")] == late


@pytest.mark.parametrize("protocol", ["task_aware", "task_free", "task_free_boundaries"])
def test_offline_fills_the_last_row_and_resumes(
    protocol, quick_tiny, run, stop_at, run_state, benchmark, tmp_path
) -> None:
    experiment = quick_tiny("offline", protocol=protocol, log_every=4, checkpoint_every=100)
    whole = run_state(run(experiment, tmp_path / "whole"))
    result = whole["result"]
    assert result["steps"] == 18 and result["accuracy"][0] == [None, None]
    assert None not in result["accuracy"][1]
    assert {name for name, value in result["metrics"].items() if value is not None} == {"ACC"}
    assert [event["task"] for event in whole["log"] if event["event"] == "evaluation"] == [1]
    for step in (1, 11):
        with pytest.raises(StopRequested, match=f"after step {step} of 18"):
            run(experiment, tmp_path / "stopped", stop_at(step))
    assert run_state(run(experiment, tmp_path / "stopped")) == whole
    model = load(tmp_path / "whole", trust=True)
    images, labels = benchmark.tasks[0].test.load()
    task = 0 if protocol == "task_aware" else None
    right = model.probabilities(images, task).argmax(dim=1) == labels
    assert result["accuracy"][1][0] == 100 * right.double().mean().item()


def test_offline_goes_over_the_labelled_examples(quick_tiny, run, tmp_path) -> None:
    folder = run(quick_tiny("offline", labels={"share": 0.5}), tmp_path)
    assert result_of(folder)["steps"] < 18


# Mistakes


@pytest.mark.parametrize("option", ["delay", "delay_spread"])
def test_no_label_can_be_late_where_all_tasks_come_at_once(option, tiny, run, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"labels\.delay and labels\.delay_spread: offline"):
        run(tiny("offline", labels={option: 3}), tmp_path)
    assert not list(tmp_path.iterdir())


def test_tasks_of_one_class_are_warned_of_where_the_task_names_the_class() -> None:
    benchmark = Procedural(num_tasks=2, classes_per_task=1, train_per_class=2, test_per_class=1).make()
    make_stream(benchmark, protocol="task_free")
    with pytest.warns(UserWarning, match=r"benchmark\.classes_per_task: task 1 of 2"):
        make_stream(benchmark)
