"""Checks of the input of a learner, before any of its state changes."""

from functools import cached_property

import torch
from torch import Tensor

from dualnet.batch import UNLABELLED, Batch, StreamSpec, describe


class InputCheck:
    """Raises ValueError, with a one-line message, for input that does not match the spec.

    Types, shapes, layouts and devices are always checked; values only on the CPU, because reading them from another
    device would synchronise with it.
    """

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec

    def check_batch(self, batch: Batch, device: torch.device) -> None:
        """Check a batch to learn from. `device` is the device of the learner."""
        if not isinstance(batch, Batch):
            raise ValueError(f"batch: {type(batch).__name__} is not a Batch; use Batch(images, labels, task_ids)")
        self.check_images(batch.images, device, self.spec.image_shape[1:])
        if len(batch) == 0:
            raise ValueError("images: the batch is empty; skip it")
        self.check_numbers(len(batch), device, batch.task_ids, batch.labels)

    def check_query(self, images: Tensor, task_ids: Tensor | None, device: torch.device) -> None:
        """Check images to classify. They may have any size, since the learner resizes them."""
        self.check_images(images, device)
        if task_ids is not None:
            self.check_numbers(len(images), device, task_ids, None)

    def check_images(self, images: Tensor, device: torch.device, size: tuple[int, ...] | None = None) -> None:
        channels, height, width = self.spec.image_shape
        sides = "H, W" if size is None else f"{height}, {width}"
        wanted = f"give uint8 [B, {channels}, {sides}], as in the image_shape of the spec"
        check_dense("images", images, device, wanted)
        shape, hint = tuple(images.shape[1:]), ""
        fits = images.dim() == 4 and shape[0] == channels and (0 not in shape if size is None else shape[1:] == size)
        if images.dtype == torch.uint8 and fits:
            return
        if images.is_floating_point():
            hint = " (floats from 0 to 1: use (255 * images).to(torch.uint8))"
        elif shape == (height, width, channels) and not fits:
            hint = " (channels come first: use images.permute(0, 3, 1, 2))"
        raise ValueError(f"images are {describe(images)}; {wanted}{hint}")

    def check_numbers(self, size: int, device: torch.device, task_ids: Tensor, labels: Tensor | None) -> None:
        given = {"task_ids": task_ids} if labels is None else {"task_ids": task_ids, "labels": labels}
        for name, tensor in given.items():
            wanted = f"give int64 [{size}], one for each image"
            check_dense(name, tensor, device, wanted)
            if tensor.dtype != torch.int64 or tensor.shape != (size,):
                raise ValueError(f"{name} are {describe(tensor)}; {wanted}")
        # Instances of a subclass, such as FakeTensor while a step is traced, may have no values.
        if device.type == "cpu" and all(type(tensor) is Tensor for tensor in given.values()):
            self.check_values(task_ids.tolist(), [UNLABELLED] * size if labels is None else labels.tolist())

    def check_values(self, tasks: list[int], labels: list[int]) -> None:
        """With Python sets: 2 us for ten examples, where every tensor operation takes more than 1 us."""
        pairs = list(zip(tasks, labels, strict=True))
        if self.pairs.issuperset(pairs):
            return
        number, (task, label) = next((number, pair) for number, pair in enumerate(pairs) if pair not in self.pairs)
        num_tasks, num_classes = self.spec.num_tasks, self.spec.num_classes
        if not 0 <= task < num_tasks:
            raise ValueError(f"task_ids[{number}]: {task} is not one of the tasks 0 to {num_tasks - 1} of the spec")
        if not 0 <= label < num_classes:
            known = f"the classes 0 to {num_classes - 1} of the spec, nor {UNLABELLED} (no label)"
            raise ValueError(f"labels[{number}]: {label} is not one of {known}")
        raise ValueError(f"labels[{number}]: class {label} is not in task {task}, by the class_mask of the spec")

    @cached_property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """All valid pairs of task and label."""
        rows = enumerate(self.spec.class_mask.tolist())
        labels = {(task, label) for task, row in rows for label, allowed in enumerate(row) if allowed}
        return frozenset(labels | {(task, UNLABELLED) for task in range(self.spec.num_tasks)})


def check_dense(name: str, tensor: object, device: torch.device, wanted: str) -> None:
    """Raises ValueError unless it is a dense tensor on the device of the learner."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} are {describe(tensor)}, not a Tensor; {wanted}")
    if tensor.layout != torch.strided or tensor.is_nested:
        layout, remedy = ("nested", "torch.stack") if tensor.is_nested else (tensor.layout, f"{name}.to_dense")
        raise ValueError(f"{name} have the layout {layout}; give a dense tensor, for example by {remedy}")
    if tensor.device != device:
        raise ValueError(f"{name} are on {tensor.device}, the learner is on {device}; use {name}.to('{device}')")
