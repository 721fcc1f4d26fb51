"""Blurry boundaries: which examples come during other tasks, and whole runs on such streams."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from run_fixtures import CPU
from torch import Tensor

from dualnet import cli
from dualnet.data.benchmark import Benchmark
from dualnet.data.procedural import Procedural
from dualnet.experiments.manifest import differences
from dualnet.experiments.record import read_record
from dualnet.experiments.stop import StopRequested
from dualnet.report.rows import compare
from dualnet.stream.blurry import BlurryConfig
from dualnet.stream.schedule import LabelsConfig
from dualnet.stream.stream import Stream, shuffled

LABELS: dict[str, dict[str, Any]] = {
    "in time": {},
    "few": {"share": 0.5},
    "few batches": {"share": 0.5, "drawn_per": "batch"},
    "late": {"delay": 1, "delay_spread": 3},
}
OPTIONS = {"blurry": {"share": 0.5}, "protocol": "task_free_boundaries"}

tasks_of_classes = st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=5), min_size=2, max_size=5)
shares = st.sampled_from([0.1, 0.25, 0.5, 1.0])
disjoint_shares = st.sampled_from([0.0, 0.3, 0.5, 0.7])


def sharp_stream(tasks: Sequence[Sequence[int]], seed: int) -> tuple[list[Tensor], Tensor]:
    """The labels of the examples of each task, and the example at each position; from the sizes of classes."""
    numbers = iter(range(sum(map(len, tasks))))
    labels = [torch.cat([torch.full((size,), next(numbers)) for size in task]) for task in tasks]
    starts = torch.tensor([0, *map(len, labels)]).cumsum(0).tolist()
    order = [
        start + shuffled(len(own), seed, task) for task, (start, own) in enumerate(zip(starts, labels, strict=False))
    ]
    return labels, torch.cat(order)


@settings(max_examples=150)
@given(tasks_of_classes, shares, disjoint_shares, st.sampled_from([0, 1, 7, 1000, 2**32 - 1]))
def test_every_example_comes_once_and_a_share_of_each_task_elsewhere(tasks, share, disjoint, seed):
    config, (labels, order) = BlurryConfig(share, disjoint), sharp_stream(tasks, seed)
    try:
        may_move = config.may_move(labels)
    except ValueError as error:
        assert "blurry.share: " in str(error)
        assume(False)
        return
    sizes, before = [len(own) for own in labels], order.clone()
    blurry = config.blur(order, sizes, may_move, seed)
    assert torch.equal(order, before) and torch.equal(blurry, config.blur(order, sizes, may_move, seed))
    assert sorted(blurry.tolist()) == list(range(sum(sizes)))
    changed, of_example = blurry != order, torch.cat(labels)
    first_class = 0
    for task, (own_order, own_blurry, own) in enumerate(
        zip(order.split(sizes), blurry.split(sizes), changed.split(sizes), strict=True)
    ):
        num_disjoint = round(disjoint * len(tasks[task]))
        num_movable = sum(tasks[task][num_disjoint:])
        stays = of_example[own_order] < first_class + num_disjoint
        assert torch.equal(own_blurry[stays], own_order[stays]), "disjoint classes keep their positions"
        assert int(own.sum()) <= round(share * num_movable)
        first_class += len(tasks[task])
    dealt = sum(round(share * sum(task[round(disjoint * len(task)) :])) for task in tasks)
    assert int(changed.sum()) <= dealt


def test_all_dealt_examples_have_the_same_chance_of_every_task():
    tasks, config, seeds = [[30, 10], [40], [20]], BlurryConfig(0.5), 400
    labels, _ = sharp_stream(tasks, 0)
    sizes, dealt = [40, 40, 20], [20, 20, 10]
    task_of = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    moved = torch.zeros(3, 3)
    for seed in range(seeds):
        blurry = config.blur(sharp_stream(tasks, seed)[1], sizes, config.may_move(labels), seed)
        moved += torch.stack([torch.bincount(task_of[part], minlength=3) for part in blurry.split(sizes)]) / seeds
    for during in range(3):
        for own in range(3):
            expected = dealt[during] * dealt[own] / 50 + (sizes[own] - dealt[own] if during == own else 0)
            assert abs(moved[during, own] - expected) < 0.6


def test_where_dealt_examples_come_is_not_the_start_of_a_task():
    config, sizes = BlurryConfig(0.2), [50, 50]
    places = torch.zeros(100)
    for seed in range(300):
        labels, order = sharp_stream([[50], [50]], seed)
        places += config.blur(order, sizes, config.may_move(labels), seed) != order
    assert places.min() > 25 and places.max() < 90, "about 300 times 0.2 everywhere"


def make_stream(benchmark: Benchmark, kind: str = "in time", share: float = 0.5, **options: Any) -> Stream:
    return Stream(benchmark, "task_free", 4, CPU, LabelsConfig(**LABELS[kind]), blurry=BlurryConfig(share), **options)


def batches_of(stream: Stream, seed: int) -> list[tuple[Tensor, Tensor | None, Tensor]]:
    batches = [batch for period in stream.periods for batch in stream.batches(period, seed)]
    return [(batch.images, batch.labels, batch.task_ids) for batch in batches]


@pytest.mark.parametrize("kind", LABELS)
def test_steps_and_shapes_are_those_of_the_sharp_stream_for_every_seed(kind, benchmark) -> None:
    def shapes(stream: Stream, seed: int) -> list[Any]:
        batches = batches_of(stream, seed)
        return [(images.shape, None if labels is None else (labels < 0).tolist()) for images, labels, _ in batches]

    expected = shapes(make_stream(benchmark, kind, share=0.0), 0)
    assert all(shapes(make_stream(benchmark, kind), seed) == expected for seed in (0, 1, 5, 2000))


@pytest.mark.parametrize("kind", LABELS)
def test_labels_belong_to_their_images_and_task_ids_say_nothing(kind, benchmark) -> None:
    truth = {}
    for task in benchmark.tasks:
        images, labels = task.train.load()
        truth |= {image.numpy().tobytes(): label for image, label in zip(images, labels.tolist(), strict=True)}
    stream = make_stream(benchmark, kind)
    batches = batches_of(stream, seed=3)
    assert {image.numpy().tobytes() for images, _, _ in batches for image in images} == set(truth)
    assert not any(task_ids.any() for _, _, task_ids in batches)
    for images, labels, _ in batches:
        for image, label in zip(images, [] if labels is None else labels.tolist(), strict=labels is not None):
            assert label in (-1, truth[image.numpy().tobytes()])
    during_first = torch.cat([step.positions for step in stream.periods[0].steps])
    assert (stream.task_of[stream.order(3)[during_first]] == 1).any()


@pytest.mark.parametrize("kind", LABELS)
def test_the_stream_follows_from_seed_and_step(kind, benchmark) -> None:
    stream, fresh, on_device = (make_stream(benchmark, kind) for _ in range(3))
    on_device.reads_in_place = False  # as a GPU has the images
    expected = batches_of(stream, seed=5)
    batches_of(fresh, seed=6)
    for step in reversed(range(stream.num_steps)):
        for other in (fresh, on_device):
            period, number = other.position(step)
            batch = next(other.batches(other.periods[period], 5, number))
            for value, wanted in zip((batch.images, batch.labels, batch.task_ids), expected[step], strict=True):
                assert (value is None and wanted is None) or torch.equal(value, wanted)


def test_a_device_holds_the_images_of_all_tasks_once_for_all_seeds(benchmark, monkeypatch) -> None:
    stream, allocated = make_stream(benchmark, "in time"), []
    stream.reads_in_place = False
    load = type(benchmark.tasks[0].train).load
    monkeypatch.setattr(type(benchmark.tasks[0].train), "load", lambda task: allocated.append(task) or load(task))
    for period in stream.periods:
        for _ in zip(*(stream.batches(period, seed) for seed in range(4)), strict=True):
            pass
    assert len(allocated) == len(benchmark.tasks)


def test_offline_has_the_labels_of_the_blurry_stream(benchmark) -> None:
    streamed, mixed = make_stream(benchmark, "few"), make_stream(benchmark, "few", epochs_over_all=2)
    kept = torch.cat([step.positions[step.labelled] for period in streamed.periods for step in period.steps])
    assert set(streamed.order(4)[kept].tolist()) == set(mixed.order(4).tolist())


# Whole runs


@pytest.mark.parametrize(("name", "labels"), [("derpp", "few"), ("dualnet", "late")])
def test_stopped_and_resumed_equals_uninterrupted(name, labels, quick_tiny, run, stop_at, run_state, tmp_path) -> None:
    experiment = quick_tiny(name, **OPTIONS, labels=LABELS[labels], checkpoint_every=100)
    whole = run_state(run(experiment, tmp_path / "whole"))
    for step in (2, 5):
        with pytest.raises(StopRequested):
            run(experiment, tmp_path / "stopped", stop_at(step))
    assert run_state(run(experiment, tmp_path / "stopped")) == whole
    sharp = run_state(run(quick_tiny(name, protocol=OPTIONS["protocol"], labels=LABELS[labels]), tmp_path / "sharp"))
    assert sharp["step"] == whole["step"] and sharp["log"] != whole["log"]


def test_the_report_does_not_compare_blurry_with_sharp(quick_tiny, run, tmp_path, capsys) -> None:
    experiments = {share: quick_tiny("er", protocol="task_free", blurry={"share": share}) for share in (0.0, 0.5)}
    for share, experiment in experiments.items():
        run(experiment, tmp_path / f"share-{share}" / "seed-0")
    with pytest.raises(ValueError, match=r"holds another experiment \(blurry.share is 0.0 there, 0.5 here\)"):
        run(experiments[0.5], tmp_path / "share-0.0" / "seed-0")
    rows = compare([tmp_path]).rows
    assert [len(row.runs) for row in rows] == [1, 1]
    names = compare([tmp_path]).setting_names()
    assert "50 % of the images of a task come during others" in names[1] and "come during" not in names[0]
    assert rows[0].setting != rows[1].setting
    sharp, blurry = (read_record(tmp_path / f"share-{share}" / "seed-0").manifest for share in (0.0, 0.5))
    assert differences(sharp, blurry) == {"blurry": ("none", "0.5")} and sharp["digest"] != blurry["digest"]
    assert cli.main(["report", str(tmp_path), "--against", "blurry.share"]) == 0
    assert "Accuracy against blurry.share" in capsys.readouterr().out


# Mistakes


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--blurry.share", "-0.1"], "blurry.share: -0.1 is not between 0 and 1"),
        (["--blurry.share", "1.5"], "blurry.share: 1.5 is not between 0 and 1"),
        (["--blurry.share", "0.5", "--blurry.disjoint", "1"], "blurry.disjoint: 1.0 is not at least 0 and below 1"),
        (["--blurry.disjoint", "0.5"], "blurry.disjoint: 0.5 has no effect with share 0; give a share"),
        (["--blurry.share", "0.01"], "blurry.share: 0.01, with disjoint 0.0, leaves fewer than two tasks"),
        (["--blurry.share", "0.5", "--blurry.disjoint", "0.8"], "leaves fewer than two tasks that exchange examples"),
        (["--blurry.share", "0.5", "--benchmark.num_tasks", "1"], "smaller disjoint, or more tasks"),
        (["--blurry.share", "0.5", "--protocol", "task_aware"], "choose protocol task_free or task_free_boundaries"),
    ],
)
def test_a_mistake_is_named_in_one_line(options, line, tiny_file, tmp_path, error_line) -> None:
    words = ["--protocol", "task_free_boundaries", *options]
    assert line in error_line("run", tiny_file, "--out", tmp_path / "out", "--device", "cpu", *words)
    assert not (tmp_path / "out").exists()


def test_the_first_classes_of_each_task_are_disjoint() -> None:
    """i-Blurry-50-10 on tasks of four classes."""
    benchmark = Procedural(num_tasks=3, classes_per_task=4, train_per_class=20, test_per_class=1, image_size=8).make()
    stream = Stream(benchmark, "task_free", 10, CPU, blurry=BlurryConfig(0.1, disjoint=0.5))
    for seed in range(5):
        for task, part in enumerate(stream.order(seed).split(80)):
            counts = torch.bincount(stream.labels[part], minlength=12)
            assert counts[4 * task : 4 * task + 2].tolist() == [20, 20]
            assert 36 <= int(counts[4 * task + 2 : 4 * task + 4].sum()) <= 40
            others = [label for label in range(12) if label // 4 != task]
            assert not counts[[label for label in others if label % 4 < 2]].any()
