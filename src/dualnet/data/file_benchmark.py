"""Shared code of benchmarks of image files: options, the choice of classes, and reading of text tables."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig, OrderSeed
from dualnet.data.image_cache import CachedImages
from dualnet.data.splits import Split, Tasks, divide_classes, make_benchmark, order_classes
from dualnet.options import BY_SEED

MAX_LIST_BYTES = 100_000_000

ImageFile = tuple[str, str, bool]  # path, class, whether it is for testing


@dataclass(frozen=True)
class FileBenchmark(BenchmarkConfig):
    root: str  # folder of the images, relative to the working directory
    classes_per_task: tuple[int, ...] | int = 5  # classes of each task, the last may have fewer; or a list
    num_tasks: int | None = None  # None: all classes; otherwise the last classes are left out
    class_order: list[str] | None = None  # the classes to use, in this order; None: all, sorted by name
    order_seed: OrderSeed = None  # shuffles the sorted names; seed: as the seed of each run; None: not shuffled
    input_size: int | None = None  # side of the networks' input; None: as stored
    cache: str | None = None  # folder of decoded images; None: $DUALNET_CACHE or ~/.cache/dualnet

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.has_order_by_seed and self.num_tasks is not None:
            remedy = "give a number as order_seed, or leave num_tasks out"
            raise ValueError(f"order_seed: {BY_SEED} with num_tasks would give each seed other classes; {remedy}")

    def choose(self, classes: Sequence[str]) -> tuple[list[str], Tasks]:
        """The classes to use, in order of the stream, and the class numbers of each task."""
        classes = order_classes(classes, self.class_order, self.order_seed)
        tasks = divide_classes(len(classes), self.classes_per_task, self.num_tasks)
        return classes[: tasks[-1][-1] + 1], tasks

    def decoded(self, split: Split, image_size: int, validation: bool = False) -> Benchmark:
        """The benchmark of a split whose `names` are image files."""
        return make_benchmark(CachedImages(split.names, image_size, self.cache), split, self.input_size, validation)


def make_split(
    files: Sequence[ImageFile], classes: Sequence[str], tasks: Tasks, class_names: Sequence[str] = ()
) -> Split:
    """The split of files. `class_names` are names to show, if those in the data set are codes."""
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[name] for _, name, _ in files], np.int64)
    is_test = np.array([test for _, _, test in files], bool)
    return Split(labels, is_test, class_names or classes, tasks, [path for path, _, _ in files])


def check_complete(path: str, classes: Sequence[str], wanted: int) -> None:
    if len(classes) != wanted or len(set(classes)) != wanted:
        classes_there = f"{len(classes)} classes, {len(set(classes))} of them different, instead of {wanted}"
        raise ValueError(f"{path}: {classes_there}; complete it, or use image_folder for your own classes")


def read_rows(path: str, delimiter: str, remedy: str) -> list[tuple[str, list[str]]]:
    """The rows of a table that are not blank: file and line, for messages, and columns."""
    from dualnet.files import describe_error, read_text  # not at the top: it loads PyYAML

    quoting = csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE
    try:
        text = io.StringIO(read_text(Path(path), MAX_LIST_BYTES).removeprefix("\ufeff"), newline="")
        rows = ([cell.strip() for cell in row] for row in csv.reader(text, delimiter=delimiter, quoting=quoting))
        return [(f"{path}, line {number}", row) for number, row in enumerate(rows, 1) if any(row)]
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"{path}: cannot be read ({describe_error(error)}); {remedy}") from None
