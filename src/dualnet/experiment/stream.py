"""The stream of an experiment: each task's examples once, in an order that the seed fixes, as batches on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from dualnet.batch import Batch, StreamSpec
from dualnet.data import Benchmark, Examples
from dualnet.experiment.experiment import Protocol

PROBE_SIZE = 100  # test images of a task that are looked at while a later one is learned


class Stream:
    """A benchmark under a protocol. Images are put on the device a task at a time; test sets stay there."""

    def __init__(self, benchmark: Benchmark, protocol: Protocol, batch_size: int, device: torch.device) -> None:
        self.tasks, self.batch_size, self.device = benchmark.tasks, batch_size, device
        self.task_aware = protocol == "task_aware"
        self.tells_boundaries = protocol != "task_free"
        self.spec: StreamSpec = benchmark.spec if self.task_aware else benchmark.spec.task_free()
        self.train: tuple[int, tuple[Tensor, Tensor]] | None = None
        self.tests: dict[int, tuple[Tensor, Tensor]] = {}
        self.probes: dict[int, tuple[Tensor, Tensor]] = {}
        self.classes_of_tasks = benchmark.spec.class_mask  # bool [tasks, classes], also where no task is told

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    def num_batches(self, task: int) -> int:
        return -(-len(self.tasks[task].train) // self.batch_size)

    @property
    def num_steps(self) -> int:
        return sum(self.num_batches(task) for task in range(self.num_tasks))

    def position(self, step: int) -> tuple[int, int]:
        """Task and number of its batch after so many steps of the stream."""
        for task in range(self.num_tasks):
            if step < self.num_batches(task):
                return task, step
            step -= self.num_batches(task)
        return self.num_tasks, 0

    def order(self, task: int, seed: int) -> Tensor:
        """In which order a seed sees a task's examples: int64 [n]."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + task)
        return torch.randperm(len(self.tasks[task].train), generator=generator).to(self.device)

    def batch(self, task: int, order: Tensor, number: int) -> Batch:
        images, labels = self.training_set(task)
        rows = order[number * self.batch_size : (number + 1) * self.batch_size]
        return Batch(images[rows], labels[rows], self.task_ids(task, len(rows)))

    def training_set(self, task: int) -> tuple[Tensor, Tensor]:
        if self.train is None or self.train[0] != task:
            self.train = (task, self.on_device(self.tasks[task].train))
        return self.train[1]

    def test_set(self, task: int) -> tuple[Tensor, Tensor]:
        if task not in self.tests:
            self.tests[task] = self.on_device(self.tasks[task].test)
        return self.tests[task]

    def probe(self, task: int) -> tuple[Tensor, Tensor]:
        """Some of a task's test images, always the same ones. The learner's chance is left alone."""
        if task not in self.probes:
            images, labels = self.test_set(task)
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(task))
            rows = order[:PROBE_SIZE].to(self.device)
            self.probes[task] = images[rows], labels[rows]
        return self.probes[task]

    def by_task(self, stored: Tensor) -> list[int] | None:
        """Examples of each task, from their numbers by task id and class; None if a class does not tell its task."""
        if self.task_aware:
            return stored.sum(dim=1).tolist()
        if (self.classes_of_tasks.sum(dim=0) > 1).any():
            return None
        return (self.classes_of_tasks.long() @ stored.sum(dim=0).cpu()).tolist()

    def on_device(self, examples: Examples) -> tuple[Tensor, Tensor]:
        images, labels = examples.load()
        return images.to(self.device), labels.to(self.device)

    def task_ids(self, task: int, size: int) -> Tensor:
        return torch.full((size,), task if self.task_aware else 0, device=self.device)
