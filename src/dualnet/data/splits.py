"""From labelled images to tasks: the order of the classes, the test images, the classes of each task.

Permutations sort the raw output of PCG64, which NumPy guarantees not to change, so they are the same on every machine.
"""

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualnet.batch import StreamSpec
from dualnet.data.benchmark import Benchmark, Examples, Images, OrderSeed, Task
from dualnet.options import BY_SEED
from dualnet.text import join_first

Tasks = Sequence[Sequence[int]]  # class numbers by task


@dataclass(frozen=True, slots=True)
class Split:
    """Labelled images, one per row, and the classes of each task, each in one task with training and test images."""

    labels: np.ndarray  # int64 [N]: class numbers
    is_test: np.ndarray  # bool [N]
    class_names: Sequence[str]  # by class number
    tasks: Tasks
    names: Sequence[str]  # of the images, or the paths of their files

    def __post_init__(self) -> None:
        uses = Counter(number for classes in self.tasks for number in classes)
        if twice := [number for number, count in uses.items() if count > 1]:
            remedy = "make a Benchmark with a Task of its own examples for each task"
            what = f"class {self.class_names[twice[0]]!r} is in {uses[twice[0]]} tasks"
            raise ValueError(f"{what}, and each would have all its images; {remedy}")
        for wanted, side in ((False, "training"), (True, "test")):
            counts = np.bincount(self.labels[self.is_test == wanted], minlength=len(self.class_names))
            if (missing := np.flatnonzero(counts == 0)).size:
                name = self.class_names[missing[0]]
                more = f" (and {missing.size - 1} more classes)" if missing.size > 1 else ""
                raise ValueError(f"class {name!r} has no {side} images{more}; add some or leave the class out")

    @property
    def digest(self) -> str:
        """Digest of class, side and file name of every image: independent of the folder and the order of the files."""
        rows = zip(self.labels.tolist(), self.is_test.tolist(), self.names, strict=True)
        lines = sorted(f"{self.class_names[label]}\t{test:d}\t{os.path.basename(name)}" for label, test, name in rows)
        return text_digest("\n".join(lines))


def make_benchmark(images: Images, split: Split, input_size: int | None = None, validation: bool = False) -> Benchmark:
    """A benchmark whose tasks share one array of images; `input_size` is the side of the networks' input."""
    by_class = [np.flatnonzero(split.labels == number) for number in range(len(split.class_names))]
    channels, height, width = images.shape[1:]

    def examples(classes: Sequence[int], is_test: bool) -> Examples:
        members = np.concatenate([by_class[number] for number in classes])
        members = members[split.is_test[members] == is_test]
        return Examples(images, members, split.labels[members])

    return Benchmark(
        spec=StreamSpec((channels, height, width), class_mask(split.tasks, len(by_class)), input_size),
        tasks=[Task(train=examples(classes, False), test=examples(classes, True)) for classes in split.tasks],
        class_names=tuple(split.class_names),
        split_digest=split.digest,
        validation=validation,
    )


def permutation(count: int, seed: int | Sequence[int]) -> np.ndarray:
    """A random permutation of range(count).

    >>> permutation(6, seed=0).tolist()
    [3, 2, 1, 0, 4, 5]
    """
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")


def permute_classes(count: int, order_seed: OrderSeed) -> np.ndarray:
    """The indices of classes in the order of an `order_seed`; None leaves them as they are."""
    if order_seed == BY_SEED:
        raise ValueError(f"order_seed: {BY_SEED} needs the seed of a run; call for_seed(0), or give a number")
    return np.arange(count) if order_seed is None else permutation(count, order_seed)


def order_classes(names: Sequence[str], order: Sequence[str] | None = None, seed: OrderSeed = None) -> list[str]:
    """Class names in the order of the stream: as given, shuffled by a seed, or sorted.

    >>> order_classes(["cat", "ant", "bee"])
    ['ant', 'bee', 'cat']
    """
    if order is not None and seed is not None:
        raise ValueError("class_order and order_seed are both given; give one of them")
    if order is None:
        ordered = sorted(names)
        return [ordered[index] for index in permute_classes(len(ordered), seed)]
    if unknown := sorted(set(order) - set(names)):
        known = join_first(sorted(names), 5)
        raise ValueError(f"class_order names {unknown[0]!r}, which is not a class; there are {known}")
    if duplicates := [name for name, count in Counter(order).items() if count > 1]:
        raise ValueError(f"class_order names {duplicates[0]!r} twice; name every class once")
    return list(order)


def divide_classes(num_classes: int, classes_per_task: int | Sequence[int], num_tasks: int | None = None) -> Tasks:
    """Consecutive classes by task: the same number in each but the last, which may have fewer, or a list of numbers.

    >>> divide_classes(7, 3), divide_classes(7, 2, num_tasks=2), divide_classes(7, [4, 1, 2])
    ([range(0, 3), range(3, 6), range(6, 7)], [range(0, 2), range(2, 4)], [range(0, 4), range(4, 5), range(5, 7)])
    """
    if not isinstance(classes_per_task, int):
        if sum(classes_per_task) != num_classes or num_tasks is not None:
            remedy = "give numbers that add up to it, without num_tasks, or choose the classes with class_order"
            raise ValueError(f"classes_per_task: {list(classes_per_task)} for {num_classes} classes; {remedy}")
        ends = list(itertools.accumulate(classes_per_task, initial=0))
        return [range(start, end) for start, end in itertools.pairwise(ends)]
    most = -(-num_classes // classes_per_task)
    if (num_tasks or 1) > most:
        needed = f"{num_tasks or 1} tasks of {classes_per_task} classes"
        raise ValueError(f"{needed} need more than the {num_classes} there are; lower num_tasks or classes_per_task")
    starts = range(0, (num_tasks or most) * classes_per_task, classes_per_task)
    return [range(start, min(start + classes_per_task, num_classes)) for start in starts]


def choose_tests(files: Mapping[str, Sequence[str]], share: float, seed: int) -> set[str]:
    """The test files: the same share of every class.

    They are chosen by a hash of the seed and the names of class and file: the order of the classes has no effect, and
    adding files moves few of the others. A class of two or more files has at least one on each side.

    >>> sorted(choose_tests({"cat": [f"{number}.jpg" for number in range(8)], "dog": ["8.jpg", "9.jpg"]}, 0.2, seed=0))
    ['4.jpg', '6.jpg', '8.jpg']
    """
    if not 0 < share < 1:
        raise ValueError(f"test_share: {share} is not between 0 and 1, both excluded")
    chosen: set[str] = set()
    for name, paths in files.items():
        by_hash = sorted(paths, key=lambda path: text_digest(f"{seed}/{name}/{os.path.basename(path)}"))
        chosen.update(by_hash[: max(1, min(len(paths) - 1, round(len(paths) * share)))])
    return chosen


def text_digest(text: str) -> str:
    """A short digest; surrogates stand for bytes of file names that are not UTF-8."""
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def class_mask(tasks: Tasks, num_classes: int) -> Tensor:
    """bool [tasks, classes]: the classes of each task.

    >>> class_mask([range(0, 1), range(1, 3)], 3)
    tensor([[ True, False, False],
            [False,  True,  True]])
    """
    mask = torch.zeros(len(tasks), num_classes, dtype=torch.bool)
    for row, classes in zip(mask, tasks, strict=True):
        row[list(classes)] = True
    return mask
