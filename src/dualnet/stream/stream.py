"""The stream of an experiment: its steps as batches on the device, with the examples in the order of the seed.

A stream is a function of experiment, seed and step, so checkpoints hold nothing of it.
"""

import warnings
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.data.benchmark import Benchmark
from dualnet.data.splits import permutation
from dualnet.stream.blurry import BlurryConfig
from dualnet.stream.schedule import LabelsConfig, Period, all_at_once, task_by_task

Protocol = Literal["task_aware", "task_free", "task_free_boundaries"]
TestSet = tuple[Tensor, Tensor, Tensor]  # images, labels and task ids, on the device
SMALL_SEEDS = 1000  # below, the order of examples is drawn from PyTorch's generator
PROBE_SIZE = 100  # test images of a task that are evaluated while a later task is learned


class Stream:
    """A benchmark under a protocol; by default labels are complete and in time, and the boundaries of tasks sharp.

    With `epochs_over_all` the stream is that many epochs over the labelled examples of all tasks together.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        protocol: Protocol,
        batch_size: int,
        device: torch.device,
        labels: LabelsConfig | None = None,
        epochs_over_all: int = 0,
        blurry: BlurryConfig | None = None,
    ) -> None:
        self.tasks, self.device, self.epochs_over_all = benchmark.tasks, device, epochs_over_all
        self.task_aware = protocol == "task_aware"
        self.tells_boundaries = protocol != "task_free"
        self.spec = spec_for_protocol(benchmark, protocol)
        single = [task for task, size in enumerate(self.spec.class_mask.sum(dim=1).tolist(), 1) if size == 1]
        if self.task_aware and single:
            warnings.warn(
                f"benchmark.classes_per_task: task {single[0]} of {self.num_tasks} has one class; under protocol "
                "task_aware its accuracy is always 100 %; give 2 or more, or choose protocol task_free",
                stacklevel=2,
            )
        self.reads_in_place = device.type == "cpu"  # a GPU holds the training images of the current tasks
        self.sizes = sizes = [len(task.train) for task in self.tasks]
        self.first_example = np.cumsum([0, *sizes])  # number of the first example of each task
        self.labels = torch.from_numpy(np.concatenate([task.train.labels for task in self.tasks]).astype(np.int64))
        self.task_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        self.blurry = blurry or BlurryConfig()
        self.may_move = self.blurry.may_move(self.labels.split(sizes))
        self.periods = task_by_task(sizes, batch_size, labels or LabelsConfig())
        if epochs_over_all:
            steps = [step for period in self.periods for step in period.steps]
            self.labelled = torch.cat([step.positions[step.labelled] for step in steps])  # positions
            self.periods = all_at_once(len(self.labelled), batch_size, epochs_over_all, self.num_tasks - 1)
        self.window: tuple[int, int, Tensor] | None = None  # first and last task, and their images, on the device
        self.test_sets: dict[int, TestSet] = {}  # by task
        self.probes: dict[int, TestSet] = {}
        self.class_mask = benchmark.spec.class_mask  # bool [tasks, classes], under every protocol

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    @property
    def num_steps(self) -> int:
        return sum(len(period.steps) for period in self.periods)

    def position(self, step: int) -> tuple[int, int]:
        """The period and the step in it that follow the first `step` steps of the stream."""
        for number, period in enumerate(self.periods):
            if step < len(period.steps):
                return number, step
            step -= len(period.steps)
        return len(self.periods), 0

    def batches(self, period: Period, seed: int, first: int = 0) -> Iterator[Batch]:
        """The batches of a period from its step `first` on, with the examples in the order of a seed."""
        positions = torch.cat([step.positions for step in period.steps])
        labelled = torch.cat([step.labelled for step in period.steps])
        examples = self.order(seed)[positions]
        labels, tasks = self.labels[examples].masked_fill(~labelled, UNLABELLED), self.task_of[examples]
        task_ids = tasks if self.task_aware else torch.zeros_like(tasks)
        images = self.images_of
        if not self.reads_in_place:
            # On a blurry stream all tasks: the first and the last one of a period differ between seeds.
            shown = (0, self.num_tasks - 1) if self.blurry.share else (int(tasks.min()), int(tasks.max()))
            first_example, on_device = self.images_on_device(*shown)
            images, examples = on_device.__getitem__, (examples - first_example).to(self.device)
            labels, task_ids = labels.to(self.device), task_ids.to(self.device)
        ends = np.cumsum([0, *(len(step.positions) for step in period.steps)]).tolist()
        for number, step in enumerate(period.steps[first:], first):
            rows = slice(ends[number], ends[number + 1])
            yield Batch(images(examples[rows]), labels[rows] if step.labelled.any() else None, task_ids[rows])

    def order(self, seed: int) -> Tensor:
        """The example at each position of the stream, for a seed: int64 [positions]."""
        in_order = torch.cat([self.order_in_task(task, seed) for task in range(self.num_tasks)])
        if self.blurry.share:
            in_order = self.blurry.blur(in_order, self.sizes, self.may_move, seed)
        if not self.epochs_over_all:
            return in_order
        pooled = in_order[self.labelled]
        return torch.cat([pooled[shuffled(len(pooled), seed, self.num_tasks + n)] for n in range(self.epochs_over_all)])

    def first_labels(self, seed: int) -> Tensor:
        """The step, counted from 1, that gives the first label of each class, for a seed: int64 [classes].

        For a class without a label it is after the last one.
        """
        labelled = [step.positions[step.labelled] for period in self.periods for step in period.steps]
        steps = torch.arange(1, len(labelled) + 1).repeat_interleave(torch.tensor([len(step) for step in labelled]))
        never = torch.full((self.spec.num_classes,), len(labelled) + 1)
        return never.scatter_reduce(0, self.labels[self.order(seed)[torch.cat(labelled)]], steps, "amin")

    def order_in_task(self, task: int, seed: int) -> Tensor:
        return int(self.first_example[task]) + shuffled(len(self.tasks[task].train), seed, task)

    def images_of(self, examples: Tensor) -> Tensor:
        """Read images from the benchmark, which need not be in main memory."""
        images = torch.empty(len(examples), *self.spec.image_shape, dtype=torch.uint8)
        tasks = self.task_of[examples]
        for task in tasks.unique().tolist():
            mask, train = tasks == task, self.tasks[task].train
            rows = train.rows[examples[mask].numpy() - self.first_example[task]]
            images[mask] = torch.from_numpy(train.array[rows])
        return images

    def images_on_device(self, first: int, last: int) -> tuple[int, Tensor]:
        """The training images of consecutive tasks, and the number of the first example. Others are freed."""
        if self.window is None or self.window[:2] != (first, last):
            self.window = None
            ends = self.first_example[first : last + 2] - self.first_example[first]
            images = torch.empty(int(ends[-1]), *self.spec.image_shape, dtype=torch.uint8, device=self.device)
            for task, start, end in zip(range(first, last + 1), ends[:-1], ends[1:], strict=True):
                images[start:end] = self.tasks[task].train.load()[0]
            self.window = (first, last, images)
        return int(self.first_example[first]), self.window[2]

    def test_set(self, task: int) -> TestSet:
        if task not in self.test_sets:
            images, labels = (tensor.to(self.device) for tensor in self.tasks[task].test.load())
            self.test_sets[task] = images, labels, torch.full_like(labels, task if self.task_aware else 0)
        return self.test_sets[task]

    def probe(self, task: int) -> TestSet:
        """Up to PROBE_SIZE test images of a task, always the same ones."""
        if task not in self.probes:
            images, labels, task_ids = self.test_set(task)
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(task))
            rows = order[:PROBE_SIZE].to(self.device)
            self.probes[task] = images[rows], labels[rows], task_ids[rows]
        return self.probes[task]

    def count_by_task(self, stored: Tensor) -> list[int] | None:
        """Number of examples of each task, from that by task id and class; None if a class is in several tasks."""
        if self.task_aware:
            return stored.sum(dim=1).tolist()
        if (self.class_mask.sum(dim=0) > 1).any():
            return None
        return (self.class_mask.long() @ stored.sum(dim=0).cpu()).tolist()


def spec_for_protocol(benchmark: Benchmark, protocol: Protocol) -> StreamSpec:
    return benchmark.spec if protocol == "task_aware" else benchmark.spec.task_free()


def shuffled(size: int, seed: int, number: int) -> Tensor:
    """A permutation of range(size), int64 [size], different for each seed and number.

    PyTorch's generator uses only 32 bits of its seed, so larger seeds could collide, such as 0 and 2**32 / 1_000_003,
    rounded. Small ones keep the orders of published results.
    """
    if seed < SMALL_SEEDS:
        return torch.randperm(size, generator=torch.Generator().manual_seed(seed * 1_000_003 + number))
    return torch.from_numpy(permutation(size, [seed, number]))
