"""Split CIFAR-100 (Krizhevsky, 2009): 20 tasks of five classes, from the Python batches or from image folders."""

import os
from dataclasses import dataclass

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.data.class_folders import class_folders, unpacked
from dualnet.data.image_folder import ImageFolder
from dualnet.data.pickled import as_text, read_pickled
from dualnet.data.splits import Split, benchmark_of, stream_order, tasks_of

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
    cache: str | None = None  # folder of decoded image files; None: $DUALNET_CACHE or ~/.cache/dualnet

    def make(self) -> Benchmark:
        root = unpacked(self.root, ARCHIVE)
        in_folders = os.path.isdir(os.path.join(root, "train"))
        return self._from_folders(root) if in_folders else self._from_batches(root)

    def _from_folders(self, root: str) -> Benchmark:
        train, test = (os.path.join(root, part) for part in ("train", "test"))
        _check_all_there(train, len(class_folders(train)))
        shared = {option: value for option, value in vars(self).items() if option != "root"}
        return ImageFolder(train, test, image_size=SIZE, **shared).make()

    def _from_batches(self, root: str) -> Benchmark:
        names = _class_names(os.path.join(root, "meta"))
        (train, train_labels), (test, test_labels) = (
            _read_batch(os.path.join(root, part)) for part in ("train", "test")
        )
        order = stream_order(names, self.class_order, self.order_seed)
        tasks = tasks_of(len(order), self.classes_per_task, self.num_tasks)
        order = order[: tasks[-1].stop]
        numbers = np.array([order.index(name) if name in order else -1 for name in names])  # by label of the data set
        labels = numbers[np.concatenate([train_labels, test_labels])]
        is_test = np.repeat([False, True], [len(train), len(test)])
        used = np.flatnonzero(labels >= 0)
        split = Split(labels[used], is_test[used], order, tasks, [str(row) for row in range(len(used))])
        images = np.concatenate([train, test])[used].reshape(-1, 3, SIZE, SIZE)
        return benchmark_of(images, split, self.input_size)


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


def _read_batch(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of red, green and blue plane, uint8 [n, 3072], and fine labels of the data set, int64 [n]."""
    content = _read(path)
    pixels, labels = content.get("data"), content.get("fine_labels")
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != 3 * SIZE**2:
        raise ValueError(f"{path}: data is no array of rows of {3 * SIZE**2} bytes; unpack {ARCHIVE} anew")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < NUM_CLASSES for label in labels):
        raise ValueError(f"{path}: fine_labels is no list of labels from 0 to {NUM_CLASSES - 1}; unpack {ARCHIVE} anew")
    if len(labels) != len(pixels):
        raise ValueError(f"{path}: {len(pixels)} images, but {len(labels)} labels; unpack {ARCHIVE} anew")
    return pixels, np.array(labels, np.int64)
