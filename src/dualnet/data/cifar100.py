"""Split CIFAR-100 (Krizhevsky, 2009): 20 tasks of five classes, from the Python batches or from image folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.data.class_folders import class_folders, unpacked
from dualnet.data.image_cache import cache_folder, cached_array
from dualnet.data.image_folder import ImageFolder
from dualnet.data.pickled import as_text, read_pickled
from dualnet.data.splits import Rows, benchmark_of, stream_order, tasks_of

ARCHIVE = "cifar-100-python"
NUM_CLASSES = 100
SIZE = 32  # pixels
REMEDY = (
    f"benchmark.root must hold {ARCHIVE}/ with the files train, test and meta, "
    "or the folders train/ and test/ with a sub-folder of images per class"
)


@dataclass(frozen=True)
class Cifar100(BenchmarkConfig):
    """The 100 fine classes, in order of their names. Test images are the data set's own."""

    root: str = "data/cifar-100"  # from the working directory: holds cifar-100-python, or train and test
    classes_per_task: int = 5  # new classes in every task
    num_tasks: int | None = None  # None: as many as the classes make; fewer leaves the last classes out
    class_order: list[str] | None = None  # the classes to use, in order of the stream; None: all, sorted by name
    order_seed: int | None = None  # shuffles the sorted names; None: leaves them sorted
    input_size: int | None = None  # side that the networks see; None: 32, as stored
    cache: str | None = None  # folder of decoded images; None: $DUALNET_CACHE or ~/.cache/dualnet

    def make(self) -> Benchmark:
        root = unpacked(self.root, ARCHIVE)
        in_folders = os.path.isdir(os.path.join(root, "train"))
        return self._from_folders(root) if in_folders else self._from_batches(root)

    def _from_folders(self, root: str) -> Benchmark:
        train, test = (os.path.join(root, part) for part in ("train", "test"))
        _check_all_there(train, len(class_folders(train)))
        return ImageFolder(
            train,
            test,
            classes_per_task=self.classes_per_task,
            num_tasks=self.num_tasks,
            class_order=self.class_order,
            order_seed=self.order_seed,
            image_size=SIZE,
            input_size=self.input_size,
            cache=self.cache,
        ).make()

    def _from_batches(self, root: str) -> Benchmark:
        files = [os.path.join(root, part) for part in ("train", "test")]
        names = _class_names(os.path.join(root, "meta"))
        batches = [_read_batch(file) for file in files]
        order = stream_order(names, self.class_order, self.order_seed)
        tasks = tasks_of(len(order), self.classes_per_task, self.num_tasks)
        order = order[: len(tasks) * self.classes_per_task]
        numbers = np.array([order.index(name) if name in order else -1 for name in names])  # by label of the data set
        train, test = (batch.of(numbers >= 0) for batch in batches)
        choice = " ".join(sorted(order))
        shape = (len(train.labels) + len(test.labels), 3, SIZE, SIZE)
        read = partial(_images, files, numbers >= 0)  # keeps no pixels, unlike the batches
        images = partial(cached_array, files, choice, shape, read, cache_folder(self.cache))
        labels = numbers[np.concatenate([train.labels, test.labels])]
        is_test = np.repeat([False, True], [len(train.labels), len(test.labels)])
        return benchmark_of(Rows(images, labels, is_test, order, tasks, self.input_size))


@dataclass(frozen=True, slots=True)
class _Batch:
    pixels: np.ndarray  # uint8 [n, 3072]: red, green and blue plane
    labels: np.ndarray  # int64 [n]: fine labels of the data set

    def of(self, chosen: np.ndarray) -> _Batch:
        """The images of the chosen labels, bool [classes]."""
        rows = chosen[self.labels]
        return self if rows.all() else _Batch(self.pixels[rows], self.labels[rows])


def _read(path: str) -> dict[str, object]:
    try:
        return read_pickled(path)
    except ValueError as error:
        raise ValueError(f"{error}; {REMEDY}") from None


def _class_names(path: str) -> list[str]:
    names = _read(path).get("fine_label_names")
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise ValueError(f"{path}: no list fine_label_names; unpack {ARCHIVE} anew")
    names = [as_text(name) for name in names]
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: fine_label_names has a name twice; unpack {ARCHIVE} anew")
    _check_all_there(path, len(names))
    return names


def _check_all_there(path: str, num_classes: int) -> None:
    if num_classes != NUM_CLASSES:
        raise ValueError(
            f"{path}: {num_classes} classes, CIFAR-100 has {NUM_CLASSES}; "
            "complete it, or use image_folder for classes of your own"
        )


def _read_batch(path: str) -> _Batch:
    content = _read(path)
    pixels, labels = content.get("data"), content.get("fine_labels")
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != 3 * SIZE**2:
        raise ValueError(f"{path}: data is no array of rows of {3 * SIZE**2} bytes; unpack {ARCHIVE} anew")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < NUM_CLASSES for label in labels):
        raise ValueError(f"{path}: fine_labels is no list of labels from 0 to {NUM_CLASSES - 1}; unpack {ARCHIVE} anew")
    if len(labels) != len(pixels):
        raise ValueError(f"{path}: {len(pixels)} images, but {len(labels)} labels; unpack {ARCHIVE} anew")
    return _Batch(pixels, np.array(labels, np.int64))


def _images(files: Sequence[str], chosen: np.ndarray) -> np.ndarray:
    return np.concatenate([_read_batch(file).of(chosen).pixels for file in files]).reshape(-1, 3, SIZE, SIZE)
