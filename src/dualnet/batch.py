"""Batches of examples, and the specification of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from dualnet.options import is_whole, quote, whole_number

UNLABELLED = -1


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """What a learner has to know about its stream before the first batch.

    A task-free stream is a task-aware one with a single task: one row in the mask, every task id 0.
    """

    image_shape: tuple[int, int, int]  # (C, H, W) of the images in a batch
    class_mask: Tensor  # bool [tasks, classes]: the classes of each task
    input_size: int | None = None  # side in pixels of the network's input; None: the size of the images

    def __post_init__(self) -> None:
        shape, mask = self.image_shape, self.class_mask
        is_sizes = isinstance(shape, Sequence) and all(isinstance(side, Integral) and side > 0 for side in shape)
        if not (is_sizes and len(shape) == 3):
            raise ValueError(f"image_shape: {shape!r} is not (channels, height, width), such as (3, 32, 32)")
        if not (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() == 2 and len(mask) > 0):
            remedy = "for one head over 10 classes torch.ones(1, 10, dtype=torch.bool)"
            raise ValueError(f"class_mask: {describe(mask)} is not bool [tasks, classes]; {remedy}")
        no_class_yet = tuple(mask.shape) == (1, 0)  # all classes are added later
        if type(mask) is Tensor and not no_class_yet and not mask.any(dim=1).all():  # a FakeTensor has no values
            task = mask.any(dim=1).tolist().index(False)
            raise ValueError(f"class_mask: task {task} has no class; every row needs one; remove the task")
        size = self.input_size
        if size is not None and not (isinstance(size, Integral) and size > 0):
            raise ValueError(f"input_size: {size!r} is not a number of pixels, nor None for the size of the images")

    @property
    def num_tasks(self) -> int:
        return self.class_mask.shape[0]

    @property
    def num_classes(self) -> int:
        return self.class_mask.shape[1]

    @property
    def network_size(self) -> tuple[int, int]:
        """Height and width of the network's input."""
        _, height, width = self.image_shape
        return (height, width) if self.input_size is None else (self.input_size, self.input_size)

    def task_free(self) -> StreamSpec:
        """The same stream without task identities: a single task with all classes.

        >>> aware = StreamSpec((3, 32, 32), torch.eye(2, dtype=torch.bool))
        >>> aware.task_free().class_mask
        tensor([[True, True]])
        """
        return StreamSpec(self.image_shape, self.class_mask.any(dim=0, keepdim=True), self.input_size)

    def with_classes(self, count: int, task: int | None = None) -> StreamSpec:
        """The same stream with new classes: in the given task, else in the only task, else in a new one.

        >>> StreamSpec((3, 32, 32), torch.ones(1, 2, dtype=torch.bool)).with_classes(1).class_mask
        tensor([[True, True, True]])
        """
        count = whole_number(count, "classes")
        if task is None:
            task = 0 if self.num_tasks == 1 else self.num_tasks
        else:
            check_task(task, self.num_tasks)
        mask = torch.zeros(max(self.num_tasks, task + 1), self.num_classes + count, dtype=torch.bool)
        mask[: self.num_tasks, : self.num_classes] = self.class_mask
        mask[task, self.num_classes :] = True
        return StreamSpec(self.image_shape, mask, self.input_size)

    def without_class(self, number: int) -> StreamSpec:
        """The same stream without a class; those with higher numbers move down by one.

        >>> StreamSpec((3, 32, 32), torch.ones(1, 2, dtype=torch.bool)).without_class(0).class_mask
        tensor([[True]])
        """
        number = whole_number(number, "class", 0, self.num_classes - 1)
        kept = torch.arange(self.num_classes) != number
        mask = self.class_mask.cpu()[:, kept]
        if self.num_tasks > 1 and not mask.any(dim=1).all():
            task = mask.any(dim=1).tolist().index(False)
            raise ValueError(f"class: task {task} would have no class left; add another one to it first")
        return StreamSpec(self.image_shape, mask, self.input_size)


def change_rows(rows: Tensor, count: int, removed: int | None = None, value: float = 0) -> Tensor:
    """A tensor with a row per class or task after a change: without the `removed` row, and filled up to `count` rows.

    >>> change_rows(torch.tensor([5, 6, 7]), 4, removed=1)
    tensor([5, 7, 0, 0])
    """
    kept = rows if removed is None else torch.cat([rows[:removed], rows[removed + 1 :]])
    return torch.cat([kept, rows.new_full((count - len(kept), *rows.shape[1:]), value)])


def check_task(task: Any, num_tasks: int) -> int:
    """The number of a task as int. Raises ValueError if there is no such task."""
    if num_tasks == 1 and not (is_whole(task) and task == 0):
        raise ValueError(f"task: {quote(task)} is given, but the model has no tasks to choose from; leave it out")
    return whole_number(task, "task", 0, num_tasks - 1)


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples that a learner receives together."""

    images: Tensor  # uint8 [B, C, H, W]; learners normalise them
    labels: Tensor | None = None  # int64 [B], UNLABELLED for a missing one; None: no example has a label
    task_ids: Tensor = None  # pyright: ignore[reportAssignmentType]  # int64 [B]; default: zeros, as if task-free
    repeated: bool = False  # whether it was learned before, in an earlier epoch: a memory does not store it again
    features: Tensor | None = None  # float16 [B, features], if `Learner.features` has computed them before

    def __post_init__(self) -> None:
        if self.task_ids is None and isinstance(self.images, Tensor) and self.images.dim() > 0:
            object.__setattr__(self, "task_ids", torch.zeros(len(self), dtype=torch.int64, device=self.images.device))

    def __repr__(self) -> str:
        labels, task_ids = ("None" if part is None else describe(part) for part in (self.labels, self.task_ids))
        return f"Batch(images={describe(self.images)}, labels={labels}, task_ids={task_ids})"

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def storable(self) -> bool:
        """Whether a memory stores its labelled examples."""
        return self.labels is not None and not self.repeated

    def to(self, device: torch.device | str) -> Batch:
        return self.map(lambda tensor: tensor.to(device))

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        labels, features = (None if part is None else change(part) for part in (self.labels, self.features))
        return Batch(change(self.images), labels, change(self.task_ids), self.repeated, features)


def describe(value: object) -> str:
    """Dtype and shape of a tensor, or the type of any other value, for error messages.

    >>> describe(torch.zeros(2, 3)), describe([])
    ('float32 [2, 3]', 'list')
    """
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
