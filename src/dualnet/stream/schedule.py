"""The steps of a stream: which of its places come together in a batch, and with which labels. No seed has a say here.

A place is a position in the stream. Which example stands there is the seed's business (stream.py), so every seed makes
the same steps with batches of the same shapes.
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

    places: Tensor  # int64 [B]
    labelled: Tensor  # bool [B]: which come with a label


@dataclass(frozen=True, slots=True)
class Period:
    """The steps up to an evaluation."""

    task: int  # the last task whose images have come: the row of the accuracy matrix
    steps: Sequence[Step]


def task_by_task(sizes: Sequence[int], batch_size: int, labels: LabelsConfig) -> list[Period]:
    """Each task once, one after the other, an evaluation after each. `sizes`: the tasks' numbers of examples."""
    tasks = [places.split(batch_size) for places in torch.arange(sum(sizes)).split(list(sizes))]
    batches = [batch for task in tasks for batch in task]
    kept = labels.kept(batches)
    if labels.late:
        steps = late_labels(batches, kept, labels.delays(len(kept)), batch_size)
    else:
        steps = [[Step(batch, kept[batch])] for batch in batches]
    rest = iter(steps)
    by_task = [itertools.islice(rest, len(task)) for task in tasks]
    return [Period(task, list(itertools.chain(*together))) for task, together in enumerate(by_task)]


def late_labels(batches: Sequence[Tensor], kept: Tensor, delays: Tensor, batch_size: int) -> list[list[Step]]:
    """What each batch of images brings: itself without labels, then earlier examples whose labels are there by now.

    Examples with their labels queue in the order of arrival. Whenever a full batch stands there it is taught; what
    still waits or stands there after the last images is taught then, the rest of less than a batch too.
    """
    came = torch.arange(len(batches)).repeat_interleave(torch.tensor([len(batch) for batch in batches]))
    arrival = came + delays
    queue = kept.nonzero().flatten()
    queue = queue[arrival[queue].argsort(stable=True)]
    steps = [[Step(batch, torch.zeros(len(batch), dtype=torch.bool))] for batch in batches]
    for batch in queue.split(batch_size):
        last = len(batches) - 1
        due = min(int(arrival[batch[-1]]), last) if len(batch) == batch_size else last
        steps[due].append(Step(batch, torch.ones(len(batch), dtype=torch.bool)))
    return steps


def all_together(num_examples: int, batch_size: int, epochs: int, last_task: int) -> list[Period]:
    """Some passes over all examples at once, each in an order of its own, and one evaluation at the end."""
    passes = torch.arange(epochs * num_examples).split(num_examples)
    batches = [batch for places in passes for batch in places.split(batch_size)]
    return [Period(last_task, [Step(batch, torch.ones(len(batch), dtype=torch.bool)) for batch in batches])]
