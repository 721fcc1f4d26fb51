"""Split CIFAR-100 (Krizhevsky, 2009): 20 tasks of five classes, from the Python batches or from image folders."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualnet.data.benchmark import Benchmark
from dualnet.data.class_folders import class_folders, unpacked
from dualnet.data.file_benchmark import FileBenchmark, check_complete
from dualnet.data.image_folder import ImageFolder
from dualnet.data.pickled import as_text, read_pickled
from dualnet.data.splits import Split, benchmark_of

ARCHIVE = "cifar-100-python"
NUM_CLASSES = 100
SIZE = 32  # pixels
REMEDY = (
    f"benchmark.root must hold {ARCHIVE}/ with the files train, test and meta, "
    "or the folders train/ and test/ with a sub-folder of images per class"
)


@dataclass(frozen=True)
class Cifar100(FileBenchmark):
    """The 100 fine classes, in order of their names. Test images are the data set's own."""

    root: str = "data/cifar-100"  # contains cifar-100-python, or train and test; relative to the working directory
    input_size: int | None = None  # side of the networks' input; None: 32, as stored

    def make(self) -> Benchmark:
        root = unpacked(self.root, ARCHIVE)
        train, test, meta = (os.path.join(root, part) for part in ("train", "test", "meta"))
        if not os.path.isdir(train):
            return self._from_batches(train, test, meta)
        check_complete(train, class_folders(train), NUM_CLASSES)
        options: dict[str, Any] = vars(self) | {"root": train, "test_root": test, "image_size": SIZE}
        return ImageFolder(**options).make()

    def _from_batches(self, train: str, test: str, meta: str) -> Benchmark:
        names = _class_names(meta)
        batches = [_read_batch(path) for path in (train, test)]
        order, tasks = self.choose(names)
        numbers = np.array([order.index(name) if name in order else -1 for name in names])  # by label of the data set
        labels = numbers[np.concatenate([labels for _, labels in batches])]
        is_test = np.repeat([False, True], [len(pixels) for pixels, _ in batches])
        used = np.flatnonzero(labels >= 0)
        split = Split(labels[used], is_test[used], order, tasks, [str(row) for row in range(len(used))])
        images = np.concatenate([pixels for pixels, _ in batches])[used].reshape(-1, 3, SIZE, SIZE)
        return benchmark_of(images, split, self.input_size)


def _class_names(path: str) -> list[str]:
    names = read_pickled(path, REMEDY).get("fine_label_names")
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise ValueError(f"{path}: no list fine_label_names; unpack {ARCHIVE} again")
    names = [as_text(name) for name in names]
    check_complete(path, names, NUM_CLASSES)
    return names


def _read_batch(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as rows of red, green and blue planes, uint8 [n, 3072], and fine labels, int64 [n]."""
    content = read_pickled(path, REMEDY)
    pixels, labels = content.get("data"), content.get("fine_labels")
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != 3 * SIZE**2:
        raise ValueError(f"{path}: data is not an array of rows of {3 * SIZE**2} bytes; unpack {ARCHIVE} again")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < NUM_CLASSES for label in labels):
        raise ValueError(f"{path}: fine_labels is not a list of 0 to {NUM_CLASSES - 1}; unpack {ARCHIVE} again")
    if len(labels) != len(pixels):
        raise ValueError(f"{path}: {len(pixels)} images, but {len(labels)} labels; unpack {ARCHIVE} again")
    return pixels, np.array(labels, np.int64)
