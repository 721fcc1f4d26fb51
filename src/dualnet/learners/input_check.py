"""Checks of what a learner is given, in one line and before any of its state changes."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from dualnet.batch import UNLABELLED, Batch, StreamSpec, described


class InputCheck:
    """Raises ValueError for input that does not match the spec.

    Types, shapes, layouts and devices are always checked. Values only on the CPU: to read them on another device would
    wait for it.
    """

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec

    def batch(self, batch: Batch, device: torch.device) -> None:
        """A batch to learn from; the device is that of the learner."""
        if not isinstance(batch, Batch):
            raise ValueError(f"batch: {kind(batch)} is not a dualnet.Batch; give Batch(images, labels, task_ids)")
        self.check_images(batch.images, device)
        if len(batch) == 0:
            raise ValueError("images: the batch is empty; leave it out")
        check_numbers("task_ids", batch.task_ids, len(batch), device)
        if batch.labels is not None:
            check_numbers("labels", batch.labels, len(batch), device)
        self.check_values(batch.task_ids, batch.labels)

    def query(self, images: Tensor, task_ids: Tensor | None, device: torch.device) -> None:
        """Images to classify, of any size and number: the learner resizes them."""
        self.check_images(images, device, any_size=True)
        if task_ids is not None:
            check_numbers("task_ids", task_ids, len(images), device)
            self.check_values(task_ids, None)

    def check_images(self, images: Tensor, device: torch.device, any_size: bool = False) -> None:
        channels, height, width = shape = tuple(self.spec.image_shape)
        sides = "H, W" if any_size else f"{height}, {width}"
        wanted = f"give uint8 [B, {channels}, {sides}], as in the image_shape of the spec"
        check_tensor("images", images, device, wanted)
        if images.dtype != torch.uint8:
            hint = " (of floats from 0 to 1: (255 * images).to(torch.uint8))" if images.is_floating_point() else ""
            raise ValueError(f"images are {described(images)}; {wanted}{hint}")
        found = tuple(images.shape[1:])
        if images.dim() != 4 or (found[0] != channels or 0 in found if any_size else found != shape):
            last = found == (height, width, channels) and channels != height
            hint = " (channels come first: images.permute(0, 3, 1, 2))" if last else ""
            raise ValueError(f"images are {described(images)}; {wanted}{hint}")

    def check_values(self, task_ids: Tensor, labels: Tensor | None) -> None:
        """By Python's sets: of ten examples they take 2 us, where every operation on tensors takes more than one."""
        if not (has_values(task_ids) and (labels is None or has_values(labels))):
            return
        tasks = task_ids.tolist()
        pairs = list(zip(tasks, [UNLABELLED] * len(tasks) if labels is None else labels.tolist(), strict=True))
        if not self.pairs.issuperset(pairs):
            number = next(number for number, pair in enumerate(pairs) if pair not in self.pairs)
            raise ValueError(self.trouble(number, *pairs[number]))

    @cached_property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """The tasks with the labels that their examples may have."""
        labels = {(task, label) for task, label in self.spec.class_mask.nonzero().tolist()}
        return frozenset(labels | {(task, UNLABELLED) for task in range(self.spec.num_tasks)})

    def trouble(self, number: int, task: int, label: int) -> str:
        spec = self.spec
        if not 0 <= task < spec.num_tasks:
            return f"task_ids[{number}]: {task} is not one of the tasks 0 to {spec.num_tasks - 1} of the spec"
        if not 0 <= label < spec.num_classes:
            classes = f"0 to {spec.num_classes - 1} of the spec"
            return f"labels[{number}]: {label} is not one of the classes {classes}, nor {UNLABELLED} for no label"
        return f"labels[{number}]: class {label} is not in task {task}, by the class_mask of the spec"


def check_numbers(name: str, tensor: Tensor, size: int, device: torch.device) -> None:
    wanted = f"give int64 [{size}], one for each image"
    check_tensor(name, tensor, device, wanted)
    if tensor.dtype != torch.int64 or tensor.shape != (size,):
        raise ValueError(f"{name} are {described(tensor)}; {wanted}")


def check_tensor(name: str, tensor: object, device: torch.device, wanted: str) -> None:
    """A dense tensor on the learner's device."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} are {kind(tensor)}, not a Tensor; {wanted}")
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} have the layout {tensor.layout}; give a dense tensor, such as {name}.to_dense()")
    if tensor.device != device:
        raise ValueError(f"{name} are on {tensor.device}, the learner is on {device}; use {name}.to('{device}')")


def has_values(tensor: Tensor) -> bool:
    """Whether reading them is free. A tensor of another class, such as those that trace a step, may have none."""
    return type(tensor) is Tensor and tensor.device.type == "cpu"


def kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
