"""From labelled rows to tasks: the order of the classes, who is held out for testing, which task answers what.

Shuffles sort the raw words of PCG64, a stream that numpy promises to keep, so every machine gets the same ones.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualnet.batch import StreamSpec
from dualnet.data.benchmark import Benchmark, Examples, Images, Task


@dataclass(frozen=True, slots=True)
class Rows:
    """Labelled images, one per row, and the tasks that their classes make."""

    images: Callable[[], Images]  # makes uint8 [N, C, H, W]; called once the rest has been checked
    labels: np.ndarray  # int64 [N]: class numbers
    is_test: np.ndarray  # bool [N]
    class_names: Sequence[str]  # by class number
    tasks: Sequence[Sequence[int]]  # class numbers by task
    input_size: int | None = None  # side that the networks see; None: as stored
    names: Sequence[str] | None = None  # of the images: paths of their files; None: the rows' numbers


def shuffled(count: int, seed: int) -> np.ndarray:
    """A permutation of range(count) that only the seed decides.

    >>> shuffled(6, seed=0).tolist()
    [3, 2, 1, 0, 4, 5]
    """
    if seed < 0:
        raise ValueError(f"the seed of a shuffle is {seed}; give 0 or more")
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")


def stream_order(names: Sequence[str], order: Sequence[str] | None = None, seed: int | None = None) -> list[str]:
    """Class names in the order in which the stream brings them: as given, shuffled by a seed, or sorted.

    >>> stream_order(["cat", "ant", "bee"])
    ['ant', 'bee', 'cat']
    """
    if order is not None and seed is not None:
        raise ValueError("class_order and order_seed both say how classes are ordered; give one of them")
    if order is None:
        ordered = sorted(names)
        return ordered if seed is None else [ordered[index] for index in shuffled(len(ordered), seed)]
    if unknown := sorted(set(order) - set(names)):
        raise ValueError(f"class_order names {unknown[0]!r}, which is no class; there are {_some(sorted(names))}")
    if len(set(order)) < len(order):
        twice = next(name for name in order if list(order).count(name) > 1)
        raise ValueError(f"class_order names {twice!r} twice; name every class once")
    return list(order)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def tasks_of(num_classes: int, classes_per_task: int, num_tasks: int | None = None) -> list[range]:
    """Consecutive classes by task. Classes are left over only where `num_tasks` asks for fewer tasks than they make.

    >>> tasks_of(6, 3), tasks_of(7, 2, num_tasks=2)
    ([range(0, 3), range(3, 6)], [range(0, 2), range(2, 4)])
    """
    if classes_per_task < 1:
        raise ValueError(f"classes_per_task is {classes_per_task}; give at least 1")
    full, left = divmod(num_classes, classes_per_task)
    if num_tasks is None:
        if full == 0:
            raise ValueError(
                f"a task needs {classes_per_task} classes, there are {num_classes}; lower classes_per_task"
            )
        if left:
            raise ValueError(
                f"{num_classes} classes do not make tasks of {classes_per_task}: "
                f"set num_tasks to {full} to leave the last {left} out, or change classes_per_task"
            )
        num_tasks = full
    if num_tasks < 1:
        raise ValueError(f"num_tasks is {num_tasks}; give at least 1")
    if num_tasks > full:
        raise ValueError(
            f"{num_tasks} tasks of {classes_per_task} need {num_tasks * classes_per_task} classes, "
            f"there are {num_classes}; lower num_tasks or classes_per_task"
        )
    return [range(start * classes_per_task, (start + 1) * classes_per_task) for start in range(num_tasks)]


def held_out(
    labels: np.ndarray, files: Sequence[str], class_names: Sequence[str], share: float, seed: int
) -> np.ndarray:
    """bool [n]: the examples kept for testing, the same share of every class.

    An example's turn comes by the seed and the names of its class and its file alone: the order of the classes does not
    move it, nor do other files, but for as many as the share asks for. A class of two or more always keeps one example
    on either side.

    >>> files = [f"{number}.jpg" for number in range(10)]
    >>> held_out(np.array([0] * 8 + [1] * 2), files, ["cat", "dog"], share=0.2, seed=0).nonzero()[0].tolist()
    [4, 6, 8]
    """
    if not 0 < share < 1:
        raise ValueError(f"test_share is {share}; give a number between 0 and 1, both excluded")
    if seed < 0:
        raise ValueError(f"split_seed is {seed}; give 0 or more")
    is_test = np.zeros(len(labels), bool)
    for label, name in enumerate(class_names):
        members = np.flatnonzero(labels == label)
        turns = [_digest(f"{seed}/{name}/{os.path.basename(files[row])}") for row in members.tolist()]
        by_turn = members[np.argsort(turns, kind="stable")]
        is_test[by_turn[: max(1, min(len(members) - 1, round(len(members) * share)))]] = True
    return is_test


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def class_mask(tasks: Sequence[Sequence[int]], num_classes: int) -> Tensor:
    """bool [tasks, classes]: the classes that a task may answer.

    >>> class_mask([range(0, 1), range(1, 3)], 3)
    tensor([[ True, False, False],
            [False,  True,  True]])
    """
    mask = torch.zeros(len(tasks), num_classes, dtype=torch.bool)
    for row, classes in zip(mask, tasks, strict=True):
        row[list(classes)] = True
    return mask


def benchmark_of(rows: Rows, validation: bool = False) -> Benchmark:
    """A benchmark whose tasks share one array. Every class must have training and test images."""
    if rows.input_size is not None and rows.input_size < 1:
        raise ValueError(f"input_size is {rows.input_size}; give at least 1 pixel, or leave it out for the stored size")
    _check_both_sides(rows.labels, rows.is_test, rows.class_names)
    by_class = [np.flatnonzero(rows.labels == number) for number in range(len(rows.class_names))]
    names = rows.names or [str(row) for row in range(len(rows.labels))]
    array = rows.images()
    channels, height, width = array.shape[1:]
    return Benchmark(
        spec=StreamSpec((channels, height, width), class_mask(rows.tasks, len(rows.class_names)), rows.input_size),
        tasks=[_task(array, rows, np.concatenate([by_class[c] for c in classes])) for classes in rows.tasks],
        class_names=tuple(rows.class_names),
        split_digest=split_digest(rows.labels, rows.is_test, rows.class_names, names),
        validation=validation,
    )


def split_digest(labels: np.ndarray, is_test: np.ndarray, class_names: Sequence[str], names: Sequence[str]) -> str:
    """Tells two splits apart by class, side and name of every image, not by where the files lie or how they are listed.

    >>> one = split_digest(np.array([0, 0]), np.array([False, True]), ["cat"], ["a/1.jpg", "a/2.jpg"])
    >>> one == split_digest(np.array([0, 0]), np.array([True, False]), ["cat"], ["b/2.jpg", "b/1.jpg"])
    True
    """
    rows = zip(labels.tolist(), is_test.tolist(), names, strict=True)
    lines = sorted(f"{class_names[label]}\t{test:d}\t{os.path.basename(name)}" for label, test, name in rows)
    return _digest("\n".join(lines))


def _task(array: Images, rows: Rows, members: np.ndarray) -> Task:
    is_test = rows.is_test[members]
    train, test = (Examples(array, part, rows.labels[part]) for part in (members[~is_test], members[is_test]))
    return Task(train, test)


def _check_both_sides(labels: np.ndarray, is_test: np.ndarray, class_names: Sequence[str]) -> None:
    for wanted, side in ((False, "training"), (True, "test")):
        counts = np.bincount(labels[is_test == wanted], minlength=len(class_names))
        if (missing := np.flatnonzero(counts == 0)).size:
            more = f" (and {missing.size - 1} more classes)" if missing.size > 1 else ""
            raise ValueError(f"class {class_names[missing[0]]!r} has no {side} images{more}; add some or leave it out")
