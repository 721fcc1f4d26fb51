"""Split miniImageNet from the lists of the paper's authors: 17 tasks of five classes, and 3 more for validation."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.data.class_folders import absolute
from dualnet.data.image_cache import cache_folder, cached_images
from dualnet.data.splits import Rows, benchmark_of, tasks_of

CLASSES_PER_TASK = 5
LISTS = {"continual": ("cl_train.csv", "cl_test.csv"), "validation": ("val_train.csv", "val_test.csv")}
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
        if self.split != "continual":
            raise ValueError(
                f"mini_imagenet: split is {self.split!r}; results come from 'continual' alone, "
                "and `dualnet search` chooses options on the validation tasks"
            )
        return benchmark_of(self._listed("continual"))

    def make_validation(self) -> Benchmark:
        return benchmark_of(self._listed("validation"), validation=True)

    def _listed(self, lists: str) -> Rows:
        root = Path(absolute(self.root))
        train, test = (_read_list(root, name) for name in LISTS[lists])
        _check_disjoint(root, lists, train, test)
        names, labels = np.unique([row.label for row in train + test], return_inverse=True)
        tasks = _tasks(root, lists, len(names))
        files = [row.path for row in train + test]
        images = partial(cached_images, files, self.image_size, cache_folder(self.cache))
        is_test = np.repeat([False, True], [len(train), len(test)])
        return Rows(images, labels, is_test, [str(name) for name in names], tasks, self.input_size, files)


@dataclass(frozen=True, slots=True)
class ListedImage:
    path: str
    label: int


def _read_list(root: Path, name: str) -> list[ListedImage]:
    place = root / name
    try:
        with place.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [_row(str(root), f"{place}, line {reader.line_num}", row) for row in reader if row]
    except OSError as error:
        raise ValueError(
            f"{place}: cannot be read ({error.strerror}); benchmark.root must hold the lists "
            f"{' and '.join(LISTS['continual'])} (or {' and '.join(LISTS['validation'])}) and the images that their "
            "rows `path,label` name"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{place}: not a text list ({error}); write rows `path,label` in UTF-8") from None
    if not rows:
        raise ValueError(f"{place}: names no images; write rows `path,label`")
    return rows


def _row(root: str, place: str, row: list[str]) -> ListedImage:
    if len(row) != 2:
        raise ValueError(f"{place}: {len(row)} columns; write `path,label`")
    path, label = os.path.join(root, row[0]), row[1].strip()
    if not label.removeprefix("-").isdecimal():
        raise ValueError(f"{place}: the label {label!r} is no integer; write `path,label`")
    if not os.path.isfile(path):
        raise ValueError(f"{place}: {path} is missing; unpack the images there or correct the row")
    return ListedImage(path, int(label))


def _check_disjoint(root: Path, split: str, train: list[ListedImage], test: list[ListedImage]) -> None:
    of_train, of_test = ({os.path.normpath(row.path) for row in rows} for rows in (train, test))
    if both := of_train & of_test:
        first, second = LISTS[split]
        raise ValueError(f"{root / second}: {min(both)} is also in {first}; keep training and test images apart")


def _tasks(root: Path, split: str, num_classes: int) -> list[range]:
    tasks = NUM_TASKS[split]
    if num_classes != tasks * CLASSES_PER_TASK:
        raise ValueError(
            f"{root / LISTS[split][0]}: {num_classes} classes, but {tasks} tasks of {CLASSES_PER_TASK} need "
            f"{tasks * CLASSES_PER_TASK}; complete the lists, or use image_folder for classes of your own"
        )
    return tasks_of(num_classes, CLASSES_PER_TASK)
