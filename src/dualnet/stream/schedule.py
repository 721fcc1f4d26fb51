"""The steps of a stream: which positions form a batch, and which of them are labelled. Independent of the seed.

The seed only decides which example is at a position (stream.py), so every seed has the same steps, with batches of the
same shapes.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualnet.stream.labels import LabelsConfig


@dataclass(frozen=True, slots=True)
class Step:
    """One batch."""

    positions: Tensor  # int64 [B]
    labelled: Tensor  # bool [B]: whether the label is given


@dataclass(frozen=True, slots=True)
class Period:
    """The steps up to an evaluation; mostly those of a task."""

    task: int  # the last task whose images have arrived: the row of the accuracy matrix
    steps: Sequence[Step]


def task_by_task(sizes: Sequence[int], batch_size: int, labels: LabelsConfig) -> list[Period]:
    """A period for each task, each example once. `sizes` are the numbers of examples of the tasks."""
    tasks = [positions.split(batch_size) for positions in torch.arange(sum(sizes)).split(list(sizes))]
    batches = [batch for task in tasks for batch in task]
    kept = labels.kept(batches)
    if labels.are_late:
        steps = late_labels(batches, kept, labels.delays(len(kept)), batch_size)
    else:
        steps = [[Step(batch, kept[batch])] for batch in batches]
    remaining = iter(steps)
    by_task = [itertools.islice(remaining, len(task)) for task in tasks]
    return [Period(task, list(itertools.chain(*steps_of_task))) for task, steps_of_task in enumerate(by_task)]


def late_labels(batches: Sequence[Tensor], kept: Tensor, delays: Tensor, batch_size: int) -> list[list[Step]]:
    """The steps for each batch of images: the batch without labels, then batches of examples with late labels.

    Examples whose label has arrived wait in a queue, in order of arrival, until they fill a batch. After the last
    images, all remaining examples follow, of which the last batch may be smaller.
    """
    image_time = torch.arange(len(batches)).repeat_interleave(torch.tensor([len(batch) for batch in batches]))
    label_time = image_time + delays
    queue = kept.nonzero().flatten()
    queue = queue[label_time[queue].argsort(stable=True)]
    steps = [[Step(batch, torch.zeros(len(batch), dtype=torch.bool))] for batch in batches]
    for batch in queue.split(batch_size):
        last = len(batches) - 1
        due = min(int(label_time[batch[-1]]), last) if len(batch) == batch_size else last
        steps[due].append(Step(batch, torch.ones(len(batch), dtype=torch.bool)))
    return steps


def all_at_once(num_examples: int, batch_size: int, epochs: int, last_task: int) -> list[Period]:
    """One period: epochs over the examples of all tasks, with one evaluation at the end."""
    passes = torch.arange(epochs * num_examples).split(num_examples)
    batches = [batch for positions in passes for batch in positions.split(batch_size)]
    return [Period(last_task, [Step(batch, torch.ones(len(batch), dtype=torch.bool)) for batch in batches])]
