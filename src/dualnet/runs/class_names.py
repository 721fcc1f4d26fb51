"""Names of classes as labels: checked, and the tasks that they belong to."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from dualnet.batch import UNLABELLED
from dualnet.options import whole


def checked_names(names: Any, known: Sequence[str] = ()) -> tuple[str, ...]:
    """New names of classes. Raises ValueError unless each is a text that is not there yet."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"names: {names!r} is not a list of names, such as ['cat', 'dog']")
    if again := {name for number, name in enumerate(names) if name in (*known, *names[:number])}:
        raise ValueError(f"names: {min(again)!r} is there already; give every class a name of its own")
    return tuple(map(str, names))


def names_of(labels: Any, count: int) -> list[str | None]:
    """The label of each image. Raises ValueError unless there are as many, each a name or None."""
    names = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, str) else [labels] * count
    for number, name in enumerate(names):
        if name is not None and not isinstance(name, str):
            kind = f"labels[{number}]: {name!r} is not the name of a class"
            raise ValueError(f"{kind}; give text, or None where it is not known")
    if len(names) != count:
        raise ValueError(f"labels: {len(names)} for {count} images; give one for each, None where it is not known")
    return names


def task_ids_of(labels: Tensor, class_mask: Tensor, task: int | None) -> Tensor:
    """The task of each example, int64 [B]: the only one, the one that is given, or that of its class."""
    if task is not None or len(class_mask) == 1:
        tasks = torch.full_like(labels, whole(0 if task is None else task, "task", 0, len(class_mask) - 1))
        outside = (labels != UNLABELLED) & ~class_mask[tasks, labels] if class_mask.numel() else torch.tensor([])
        if outside.any():
            raise ValueError(f"task: {task}, and labels[{int(outside.int().argmax())}] is a class of another task")
        return tasks
    if ((labels == UNLABELLED) | (class_mask.sum(dim=0)[labels] > 1)).any():
        raise ValueError("task: this model learned task-aware; give the task of images without a label")
    return class_mask.int().argmax(dim=0)[labels]
