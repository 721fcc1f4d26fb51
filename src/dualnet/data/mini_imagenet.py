"""Split miniImageNet from the lists of the paper's authors: 17 tasks of five classes, and 3 more for validation."""

import csv
import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.data.class_folders import absolute
from dualnet.data.image_cache import cached_images
from dualnet.data.splits import Split, benchmark_of, tasks_of

CLASSES_PER_TASK = 5
LISTS = {"continual": ("cl_train.csv", "cl_test.csv"), "validation": ("val_train.csv", "val_test.csv")}
LARGEST_LIST = 100_000_000  # bytes
NUM_TASKS = {"continual": 17, "validation": 3}


@dataclass(frozen=True)
class MiniImageNet(BenchmarkConfig):
    """Tasks of five consecutive labels. Options are chosen on the 3 tasks of `val_*.csv`, whose classes are others."""

    root: str = "data/mini-imagenet"  # from the working directory: holds the lists, with rows `path from here,label`
    split: Literal["continual"] = "continual"  # the 17 tasks; `make_validation` alone reads the other lists
    image_size: int = 84  # side in pixels of the images as stored
    input_size: int | None = None  # side that the networks see; None: as stored
    cache: str | None = None  # folder of decoded images; None: $DUALNET_CACHE or ~/.cache/dualnet

    def make(self) -> Benchmark:
        return self._listed("continual")

    def make_validation(self) -> Benchmark:
        return self._listed("validation")

    def _listed(self, lists: str) -> Benchmark:
        root = absolute(self.root)
        train, test = (_read_list(root, name) for name in LISTS[lists])
        _check_disjoint(root, lists, train, test)
        files = [path for path, _ in train + test]
        names, labels = np.unique([label for _, label in train + test], return_inverse=True)
        is_test = np.repeat([False, True], [len(train), len(test)])
        split = Split(labels, is_test, [str(name) for name in names], _tasks(root, lists, len(names)), files)
        images = cached_images(files, self.image_size, self.cache)
        return benchmark_of(images, split, self.input_size, validation=lists == "validation")


def _read_list(root: str, name: str) -> list[tuple[str, int]]:
    """Paths and labels."""
    from dualnet.files import read_text, reason  # not at the top: it loads PyYAML

    place = os.path.join(root, name)
    try:
        text = read_text(Path(place), LARGEST_LIST).removeprefix("\ufeff")
        lines = [(number, row) for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(
            f"{place}: cannot be read ({reason(error)}); benchmark.root must hold the lists "
            f"{' and '.join(LISTS['continual'])} (or {' and '.join(LISTS['validation'])}), rows `path,label` in UTF-8, "
            "and the images that they name"
        ) from None
    if not lines:
        raise ValueError(f"{place}: names no images; write rows `path,label`")
    return [_row(root, f"{place}, line {number}", row) for number, row in lines]


def _row(root: str, place: str, row: list[str]) -> tuple[str, int]:
    if len(row) != 2:
        raise ValueError(f"{place}: {len(row)} columns; write `path,label`")
    path, label = os.path.join(root, row[0]), row[1].strip()
    if not re.fullmatch(r"-?\d{1,18}", label):
        raise ValueError(f"{place}: the label {label!r} is no integer; write `path,label`")
    if not os.path.isfile(path):
        raise ValueError(f"{place}: {path} is missing; unpack the images there or correct the row")
    return path, int(label)


def _check_disjoint(root: str, split: str, train: list[tuple[str, int]], test: list[tuple[str, int]]) -> None:
    of_train, of_test = ({os.path.normpath(path) for path, _ in rows} for rows in (train, test))
    if both := of_train & of_test:
        first, second = LISTS[split]
        raise ValueError(
            f"{os.path.join(root, second)}: {min(both)} is also in {first}; keep training and test images apart"
        )


def _tasks(root: str, split: str, num_classes: int) -> list[range]:
    tasks = NUM_TASKS[split]
    if num_classes != tasks * CLASSES_PER_TASK:
        raise ValueError(
            f"{os.path.join(root, LISTS[split][0])}: {num_classes} classes, but {tasks} tasks of {CLASSES_PER_TASK} "
            f"need {tasks * CLASSES_PER_TASK}; complete the lists, or use image_folder for classes of your own"
        )
    return tasks_of(num_classes, CLASSES_PER_TASK)
