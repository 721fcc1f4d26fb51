"""The steps of a stream: which positions form a batch, and which of them are labelled. Independent of the seed.

The seed only decides which example is at a position (stream.py), so every seed has the same steps, with batches of the
same shapes.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dualnet.options import check_at_least, check_fields

SHARE_SEED, DELAY_SEED = 0, 1  # constants, so that the draws are the same for every seed of an experiment
MAX_DELAY = 10**9  # batches


@dataclass(frozen=True)
class LabelsConfig:
    """Missing and late labels."""

    share: float = 1.0  # rho: share of the stream that is labelled; the paper: 0.1 and 0.25
    drawn_per: Literal["sample", "batch"] = "sample"  # labels are kept or dropped per sample or, as the authors, batch
    delay: int = 0  # batches of images between an image and its label
    delay_spread: int = 0  # labels are up to this many batches later still, and so arrive out of order

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.share <= 1:
            raise ValueError(f"share: {self.share} is not above 0 and at most 1")
        check_at_least(self, 0, "delay", "delay_spread", most=MAX_DELAY)

    @property
    def are_late(self) -> bool:
        return self.delay > 0 or self.delay_spread > 0

    def kept(self, batches: Sequence[Tensor]) -> Tensor:
        """Which positions of a stream of batches are labelled: bool [positions]."""
        sizes = torch.tensor([len(batch) for batch in batches])
        draws = len(batches) if self.drawn_per == "batch" else int(sizes.sum())
        kept = torch.rand(draws, generator=torch.Generator().manual_seed(SHARE_SEED)) < self.share
        if not kept.any():
            num_images = int(sizes.sum())
            raise ValueError(f"labels.share: {self.share} of {num_images} images leaves no label; give a larger share")
        return kept.repeat_interleave(sizes) if self.drawn_per == "batch" else kept

    def delays(self, num_positions: int) -> Tensor:
        """The delay of the label at each position, in batches: int64 [positions]."""
        generator = torch.Generator().manual_seed(DELAY_SEED)
        return self.delay + torch.randint(0, self.delay_spread + 1, (num_positions,), generator=generator)


@dataclass(frozen=True, slots=True)
class Step:
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
