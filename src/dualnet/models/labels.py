"""Class names as labels: checks, and the tasks of the classes."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from dualnet.batch import UNLABELLED, check_task

CONTROL = ("Cc", "Zl", "Zp")  # Unicode categories: control characters, separators of lines and paragraphs


def check_new_names(names: Any, known: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of new classes. Raises ValueError unless each is a string, new, and can be shown in a line."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"names: {names!r} is not a list of names, such as ['cat', 'dog']")
    if duplicates := {name for number, name in enumerate(names) if name in (*known, *names[:number])}:
        raise ValueError(f"names: {min(duplicates)!r} exists already; give every class another name")
    for name in names:
        if not name.strip() or any(unicodedata.category(character) in CONTROL for character in name):
            raise ValueError(f"names: {name!r} is blank or contains a control character; give the class another name")
    return tuple(map(str, names))


def list_names(labels: Any, count: int) -> list[str | None]:
    """The label of each image: a class name or None. Raises ValueError if their number is wrong."""
    names = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, str) else [labels] * count
    for number, name in enumerate(names):
        if name is not None and not isinstance(name, str):
            raise ValueError(f"labels[{number}]: {name!r} is not a class name; give a string, or None if it is unknown")
    if len(names) != count:
        raise ValueError(f"labels: {len(names)} for {count} images; give one for each, None if it is unknown")
    return names


def find_tasks(labels: Tensor, class_mask: Tensor, task: int | None) -> Tensor:
    """The task of each example, int64 [B]: the only task, the given one, or that of its class."""
    if task is not None or len(class_mask) == 1:
        tasks = torch.full_like(labels, check_task(0 if task is None else task, len(class_mask)))
        outside = (labels != UNLABELLED) & ~class_mask[tasks, labels] if class_mask.numel() else torch.tensor([])
        if outside.any():
            raise ValueError(f"task: {task}, and labels[{int(outside.int().argmax())}] is a class of another task")
        return tasks
    if ((labels == UNLABELLED) | (class_mask.sum(dim=0)[labels] > 1)).any():
        raise ValueError("task: this model is task-aware; give the task of images without a label")
    return class_mask.int().argmax(dim=0)[labels]
