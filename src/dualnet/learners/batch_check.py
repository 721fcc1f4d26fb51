"""What is wrong with a batch, in one line, before anything in a learner has moved."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from dualnet.batch import UNLABELLED, Batch, StreamSpec, described


class BatchCheck:
    """Raises ValueError for a batch that is none of the stream's.

    Shapes, types and devices are always looked at. Values only on the CPU: elsewhere a look would wait for the device.
    """

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec

    def __call__(self, batch: Batch, device: torch.device) -> None:
        """The device is that of the learner."""
        self.check_images(batch.images)
        numbers = {"task_ids": batch.task_ids} | ({} if batch.labels is None else {"labels": batch.labels})
        for name, tensor in numbers.items():
            check_numbers(name, tensor, len(batch.images))
        for name, tensor in {"images": batch.images, **numbers}.items():
            if tensor.device != device:
                raise ValueError(f"{name} are on {tensor.device}, the learner is on {device}; use batch.to('{device}')")
        if all(has_values(tensor) for tensor in numbers.values()):
            self.check_values(batch.task_ids, batch.labels)

    def check_images(self, images: Tensor) -> None:
        shape = tuple(self.spec.image_shape)
        wanted = f"give uint8 [B, {', '.join(map(str, shape))}], the image_shape of the spec"
        if not isinstance(images, Tensor):
            raise ValueError(f"images are no Tensor but {kind(images)}; {wanted}")
        if images.dtype != torch.uint8:
            hint = " (of floats from 0 to 1: (255 * images).to(torch.uint8))" if images.is_floating_point() else ""
            raise ValueError(f"images are {described(images)}; {wanted}{hint}")
        if images.dim() != 4 or images.shape[1:] != shape:
            channels, height, width = shape
            last = images.dim() == 4 and tuple(images.shape[1:]) == (height, width, channels)
            hint = " (channels come first: images.permute(0, 3, 1, 2))" if last else ""
            raise ValueError(f"images are {described(images)}; {wanted}{hint}")
        if len(images) == 0:
            raise ValueError("the batch is empty; leave it out")

    def check_values(self, task_ids: Tensor, labels: Tensor | None) -> None:
        """By Python's sets: of ten examples they take 2 us, where every operation on tensors takes more than one."""
        tasks = task_ids.tolist()
        pairs = list(zip(tasks, tasks if labels is None else labels.tolist(), strict=True))
        known = self.tasks if labels is None else self.pairs
        if not known.issuperset(pairs):
            number = next(number for number, pair in enumerate(pairs) if pair not in known)
            raise ValueError(self.trouble(number, *pairs[number]))

    @cached_property
    def tasks(self) -> frozenset[tuple[int, int]]:
        return frozenset((task, task) for task in range(self.spec.num_tasks))

    @cached_property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """The tasks with the labels that their examples may have."""
        answers = {(task, label) for task, label in self.spec.class_mask.nonzero().tolist()}
        return frozenset(answers | {(task, UNLABELLED) for task in range(self.spec.num_tasks)})

    def trouble(self, number: int, task: int, label: int) -> str:
        spec = self.spec
        if not 0 <= task < spec.num_tasks:
            return f"task_ids[{number}]: {task} is none of the tasks 0 to {spec.num_tasks - 1} of the stream"
        if not 0 <= label < spec.num_classes:
            classes = f"0 to {spec.num_classes - 1} of the stream"
            return f"labels[{number}]: {label} is none of the classes {classes}, nor {UNLABELLED} for a missing label"
        return f"labels[{number}]: class {label} is none of task {task}, by the class_mask of the spec"


def check_numbers(name: str, tensor: Tensor, size: int) -> None:
    wanted = f"give int64 [{size}], one for each image"
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} are no Tensor but {kind(tensor)}; {wanted}")
    if tensor.dtype != torch.int64 or tensor.shape != (size,):
        raise ValueError(f"{name} are {described(tensor)}; {wanted}")


def has_values(tensor: Tensor) -> bool:
    """Whether they can be read for nothing. A tensor of another class, as those that trace a step, may have none."""
    return type(tensor) is Tensor and tensor.device.type == "cpu"


def kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
