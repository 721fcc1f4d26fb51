"""The steps of a stream: every image once, every label once and never too early, as a plain model of a queue says."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualnet.stream.schedule import LabelsConfig, Period, Step, all_at_once, task_by_task

sizes_of_tasks = st.lists(st.integers(1, 30), min_size=1, max_size=4)
batch_sizes = st.integers(1, 9)
label_options = st.builds(
    LabelsConfig,
    share=st.sampled_from([1.0, 0.9, 0.6]),
    drawn_per=st.sampled_from(["sample", "batch"]),
    delay=st.integers(0, 12),
    delay_spread=st.integers(0, 7),
)


def steps_of(periods: list[Period]) -> list[Step]:
    return [step for period in periods for step in period.steps]


def labelled_places(step: Step) -> list[int]:
    return step.positions[step.labelled].tolist()


def image_batches(sizes: list[int], batch_size: int) -> list[list[int]]:
    """Places of each batch of images, by hand."""
    batches, start = [], 0
    for size in sizes:
        for first in range(0, size, batch_size):
            batches.append(list(range(start + first, start + min(first + batch_size, size))))
        start += size
    return batches


def make(sizes: list[int], batch_size: int, labels: LabelsConfig) -> list[Period]:
    try:
        return task_by_task(sizes, batch_size, labels)
    except ValueError as error:  # a few images may all lose their labels
        assert "leaves no label; give a larger share" in str(error) and labels.share < 1
        return []


@given(sizes_of_tasks, batch_sizes)
def test_by_default_every_batch_has_its_labels(sizes, batch_size):
    periods = task_by_task(sizes, batch_size, LabelsConfig())
    assert [period.task for period in periods] == list(range(len(sizes)))
    assert [math.ceil(size / batch_size) for size in sizes] == [len(period.steps) for period in periods]
    assert [step.positions.tolist() for step in steps_of(periods)] == image_batches(sizes, batch_size)
    assert all(step.labelled.all() for step in steps_of(periods))


@settings(max_examples=60)
@given(sizes_of_tasks, batch_sizes, label_options)
def test_every_image_and_every_kept_label_comes_once(sizes, batch_size, labels):
    steps = steps_of(make(sizes, batch_size, labels))
    if not steps:
        return
    batches = image_batches(sizes, batch_size)
    kept = labels.kept([torch.tensor(batch) for batch in batches]).nonzero().flatten().tolist()
    assert sorted(place for step in steps for place in labelled_places(step)) == kept
    if labels.are_late:
        assert [step.positions.tolist() for step in steps if not step.labelled.any()] == batches
        assert all(step.labelled.all() or not step.labelled.any() for step in steps), "nothing else is taught"
    else:
        assert [step.positions.tolist() for step in steps] == batches


def queue_model(sizes, batch_size, kept, delays) -> list[list[list[tuple[bool, list[int]]]]]:
    """What happens, one batch of images after the other, with a list for those who wait and one for the queue."""
    batches = image_batches(sizes, batch_size)
    waiting: list[tuple[int, int]] = []  # when the label arrives, and the place
    queue: list[int] = []
    out = []
    for now, batch in enumerate(batches):
        out.append([(False, batch)])
        waiting += [(now + delays[place], place) for place in batch if kept[place]]
        arrived = sorted(entry for entry in waiting if entry[0] == now)
        waiting = [entry for entry in waiting if entry[0] > now]
        queue += [place for _, place in arrived]
        if now == len(batches) - 1:
            queue += [place for _, place in sorted(waiting)]
        while len(queue) >= batch_size or (queue and now == len(batches) - 1):
            out[-1].append((True, queue[:batch_size]))
            queue = queue[batch_size:]
    by_task, rest = [], iter(out)
    for size in sizes:
        by_task.append([step for _ in range(math.ceil(size / batch_size)) for step in next(rest)])
    return by_task


@settings(max_examples=100)
@given(sizes_of_tasks, batch_sizes, label_options.filter(lambda labels: labels.are_late))
def test_late_labels_are_those_of_a_queue(sizes, batch_size, labels):
    periods = make(sizes, batch_size, labels)
    if not periods:
        return
    kept = labels.kept([torch.tensor(batch) for batch in image_batches(sizes, batch_size)]).tolist()
    expected = queue_model(sizes, batch_size, kept, labels.delays(sum(sizes)).tolist())
    steps = [[(bool(step.labelled.any()), step.positions.tolist()) for step in period.steps] for period in periods]
    assert steps == expected


@pytest.mark.parametrize("spread", [0, 3])
def test_a_label_is_never_early(spread):
    """Counted in batches of images; only the end of the stream brings labels before their time."""
    labels = LabelsConfig(delay=5, delay_spread=spread)
    periods = task_by_task([40, 33, 40], 4, labels)
    now, seen, late = -1, {}, []
    for step in steps_of(periods):
        if not step.labelled.any():
            now += 1
            seen |= dict.fromkeys(step.positions.tolist(), now)
        elif now < 28:  # of 0..28
            late += [now - seen[place] for place in step.positions.tolist()]
    assert min(late) >= 5 and len(late) > 60
    assert max(late) <= 5 + spread + 2, "a full batch never waits for more than the rest of another"
    if spread:
        assert len(set(late)) > 2
        order = [place for step in steps_of(periods) if step.labelled.any() for place in step.positions.tolist()]
        assert order != sorted(order)


def test_a_label_after_its_task_counts_for_the_next_one():
    first, second = task_by_task([8, 8], 4, LabelsConfig(delay=1))
    assert [(bool(step.labelled.any()), step.positions[0].item()) for step in first.steps] == [
        *((False, 0), (False, 4), (True, 0))  # the labels of the second batch come with the next task
    ]
    assert [(bool(step.labelled.any()), step.positions[0].item()) for step in second.steps] == [
        *((False, 8), (True, 4), (False, 12), (True, 8), (True, 12))  # the last one is not kept waiting
    ]


@pytest.mark.parametrize("delay", [1000, 10**9])
def test_a_delay_beyond_the_end_brings_all_labels_at_the_end(delay):
    *_, last = task_by_task([10, 10], 4, LabelsConfig(delay=delay))
    taught = [step.positions.tolist() for step in last.steps if step.labelled.any()]
    assert taught == [list(range(first, first + 4)) for first in range(0, 20, 4)]
    assert all(step.labelled.any() for step in last.steps[-5:])


@pytest.mark.parametrize("drawn_per", ["sample", "batch"])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.9])
def test_the_share_of_labels(share, drawn_per):
    labels = LabelsConfig(share=share, drawn_per=drawn_per)
    steps = steps_of(task_by_task([20_000] * 4, 10, labels))
    counts = torch.tensor([float(len(labelled_places(step))) for step in steps])
    draws = 80_000 if drawn_per == "sample" else 8_000
    drawn = counts.sum().item() / 80_000
    assert abs(drawn - share) < 4 * math.sqrt(share * (1 - share) / draws)
    if drawn_per == "batch":
        assert set(counts.tolist()) == {0, 10}
    else:  # independent of each other: the counts of batches are binomial
        assert counts.var().item() == pytest.approx(10 * share * (1 - share), rel=0.1)
    neighbours = torch.corrcoef(torch.stack([counts[:-1], counts[1:]]))[0, 1].item()
    assert abs(neighbours) < 4 / math.sqrt(len(counts))


def test_delays_are_spread_evenly():
    counts = torch.bincount(LabelsConfig(delay=20, delay_spread=4).delays(50_000))
    assert counts[:20].sum() == 0 and len(counts) == 25
    assert all(abs(count - 10_000) < 4 * math.sqrt(50_000 * 0.2 * 0.8) for count in counts[20:].tolist())


@given(st.integers(1, 40), batch_sizes, st.integers(1, 4))
def test_all_at_once(num_examples, batch_size, epochs):
    (period,) = all_at_once(num_examples, batch_size, epochs, last_task=6)
    assert period.task == 6
    assert torch.cat([step.positions for step in period.steps]).tolist() == list(range(epochs * num_examples))
    assert len(period.steps) == epochs * math.ceil(num_examples / batch_size), "a batch is of one pass"
    assert all(step.labelled.all() for step in period.steps)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"share": 0}, "share: 0 is not above 0 and at most 1"),
        ({"share": 1.1}, "share: 1.1 is not above 0 and at most 1"),
        ({"share": math.nan}, "share: nan is not"),
        ({"delay": -1}, "delay: -1 is not 0 or more"),
        ({"delay_spread": -2}, "delay_spread: -2 is not 0 or more"),
        ({"delay": 10**20}, f"delay: {10**20} is not between 0 and 1000000000"),
        ({"drawn_per": "class"}, "drawn_per: 'class' is not one of sample, batch"),
    ],
)
def test_bad_values_are_named(options, line):
    with pytest.raises(ValueError) as caught:
        LabelsConfig(**options)
    assert str(caught.value).startswith(line)


def test_a_stream_without_any_label_is_refused():
    with pytest.raises(ValueError, match=r"^labels\.share: 1e-09 "):
        task_by_task([12, 12], 4, LabelsConfig(share=1e-9))
