"""What the benchmarks of image files share: options, the choice of classes, and lists in text files."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.data.image_cache import CachedImages
from dualnet.data.splits import Split, benchmark_of, stream_order, tasks_of

LARGEST_LIST = 100_000_000  # bytes

ImageFile = tuple[str, str, bool]  # path, class, whether it is for testing


@dataclass(frozen=True)
class FileBenchmark(BenchmarkConfig):
    root: str  # folder of the images; relative: from the working directory
    classes_per_task: tuple[int, ...] | int = 5  # new classes of a task, the last may get fewer; or a list of them
    num_tasks: int | None = None  # None: as many as the classes make; fewer leaves the last classes out
    class_order: list[str] | None = None  # the classes to use, in order of the stream; None: all, sorted by name
    order_seed: int | None = None  # shuffles the sorted names; None: leaves them sorted
    input_size: int | None = None  # side that the networks see; None: as stored
    cache: str | None = None  # folder of decoded images; None: $DUALNET_CACHE or ~/.cache/dualnet

    def choose(self, classes: Sequence[str]) -> tuple[list[str], Sequence[Sequence[int]]]:
        """The classes that are used, in order of the stream, and class numbers by task."""
        classes = stream_order(classes, self.class_order, self.order_seed)
        tasks = tasks_of(len(classes), self.classes_per_task, self.num_tasks)
        return classes[: tasks[-1][-1] + 1], tasks

    def decoded(self, split: Split, image_size: int, validation: bool = False) -> Benchmark:
        """The benchmark of a split whose `names` are files."""
        return benchmark_of(CachedImages(split.names, image_size, self.cache), split, self.input_size, validation)


def split_of(
    files: Sequence[ImageFile], classes: Sequence[str], tasks: Sequence[Sequence[int]], class_names: Sequence[str] = ()
) -> Split:
    """The split of files; `class_names` are for people, if the classes have others in the data set."""
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[name] for _, name, _ in files], np.int64)
    is_test = np.array([test for _, _, test in files], bool)
    return Split(labels, is_test, class_names or classes, tasks, [path for path, _, _ in files])


def check_complete(path: str, classes: Sequence[str], wanted: int) -> None:
    if len(classes) != wanted or len(set(classes)) != wanted:
        found = f"{len(classes)} classes, {len(set(classes))} of them different, where {wanted} should be"
        raise ValueError(f"{path}: {found}; complete it, or use image_folder for classes of your own")


def read_rows(path: str, delimiter: str, remedy: str) -> list[tuple[str, list[str]]]:
    """Rows of a table: where each is, for messages, and its columns. Blank ones are left out."""
    from dualnet.files import read_text, reason  # not at the top: it loads PyYAML

    quoting = csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE
    try:
        text = io.StringIO(read_text(Path(path), LARGEST_LIST).removeprefix("\ufeff"), newline="")
        rows = ([cell.strip() for cell in row] for row in csv.reader(text, delimiter=delimiter, quoting=quoting))
        return [(f"{path}, line {number}", row) for number, row in enumerate(rows, 1) if any(row)]
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"{path}: cannot be read ({reason(error)}); {remedy}") from None
