"""Split miniImageNet with the lists of the paper's authors: 17 tasks of five classes, and 3 for validation."""

import os
import re
from dataclasses import dataclass
from typing import Literal

from dualnet.data.benchmark import Benchmark, BenchmarkConfig, OrderSeed
from dualnet.data.class_folders import absolute_path
from dualnet.data.file_benchmark import check_complete, make_split, read_rows
from dualnet.data.image_cache import CachedImages
from dualnet.data.splits import divide_classes, make_benchmark, permute_classes
from dualnet.options import quote

CLASSES_PER_TASK = 5
LISTS = {"continual": ("cl_train.csv", "cl_test.csv"), "validation": ("val_train.csv", "val_test.csv")}
NUM_CLASSES = {"continual": 85, "validation": 15}
REMEDY = (
    f"benchmark.root must hold the lists {' and '.join(LISTS['continual'])} (or {' and '.join(LISTS['validation'])}), "
    "rows `path,label` in UTF-8, and the images that they name"
)


@dataclass(frozen=True)
class MiniImageNet(BenchmarkConfig):
    """Tasks of five consecutive labels. Options are chosen on the 3 tasks of `val_*.csv`, which have other classes."""

    root: str = "data/mini-imagenet"  # contains the lists of `path in root,label`; relative to the working directory
    split: Literal["continual"] = "continual"  # the 17 tasks; only `make_validation` reads the other lists
    order_seed: OrderSeed = None  # shuffles the labels; seed: as the seed of each run; None: the published order
    image_size: int = 84  # side in pixels of the images as stored
    input_size: int | None = None  # side of the networks' input; None: as stored
    validation_classes_per_task: int = 5  # fewer make more validation tasks, up to 15 of one class
    cache: str | None = None  # folder of decoded images; None: $DUALNET_CACHE or ~/.cache/dualnet

    def make(self) -> Benchmark:
        return self._listed("continual", CLASSES_PER_TASK)

    def make_validation(self) -> Benchmark:
        return self._listed("validation", self.validation_classes_per_task)

    def _listed(self, lists: str, classes_per_task: int) -> Benchmark:
        root = absolute_path(self.root)
        train, test = (_read_list(root, name) for name in LISTS[lists])
        _check_disjoint(root, lists, train, test)
        published = [str(label) for label in sorted({label for _, label in train + test})]
        check_complete(os.path.join(root, LISTS[lists][0]), published, NUM_CLASSES[lists])
        labels = [published[index] for index in permute_classes(len(published), self.order_seed)]
        files = [(path, str(label), part is test) for part in (train, test) for path, label in part]
        split = make_split(files, labels, divide_classes(len(labels), classes_per_task))
        images = CachedImages(split.names, self.image_size, self.cache)
        return make_benchmark(images, split, self.input_size, validation=lists == "validation")


def _read_list(root: str, name: str) -> list[tuple[str, int]]:
    """The paths and labels of a list."""
    rows = read_rows(os.path.join(root, name), ",", REMEDY)
    if not rows:
        raise ValueError(f"{os.path.join(root, name)}: names no images; write rows `path,label`")
    return [_row(root, place, row) for place, row in rows]


def _row(root: str, place: str, row: list[str]) -> tuple[str, int]:
    if len(row) != 2 or not re.fullmatch(r"-?\d{1,18}", row[1]):
        raise ValueError(f"{place}: {quote(','.join(row))} is not `path,label` with an integer; correct the row")
    path = os.path.join(root, row[0])
    if not os.path.isfile(path):
        raise ValueError(f"{place}: {path} is missing; unpack the images there or correct the row")
    return path, int(row[1])


def _check_disjoint(root: str, split: str, train: list[tuple[str, int]], test: list[tuple[str, int]]) -> None:
    of_train, of_test = ({os.path.normpath(path) for path, _ in rows} for rows in (train, test))
    if both := of_train & of_test:
        first, second = LISTS[split][0], os.path.join(root, LISTS[split][1])
        raise ValueError(f"{second}: {min(both)} is also in {first}; keep training and test images apart")
