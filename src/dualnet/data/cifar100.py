"""Split CIFAR-100 (Krizhevsky, 2009): 20 tasks of five classes, from the published batches or from image folders."""

import hashlib
import os
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualnet.data.benchmark import Benchmark
from dualnet.data.class_folders import find_classes, find_unpacked
from dualnet.data.file_benchmark import FileBenchmark, check_complete
from dualnet.data.image_folder import ImageFolder
from dualnet.data.splits import Split, make_benchmark
from dualnet.files import describe_error, read_bytes

ARCHIVE = "cifar-100-python"
NUM_CLASSES = 100
SIZE = 32  # pixels
MAX_BYTES = 200_000_000  # of a file; the training images have 155 MB
PUBLISHED_MD5 = {  # as torchvision states them; another file with one of these cannot be made on purpose
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
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
        root = find_unpacked(self.root, ARCHIVE)
        train, test = os.path.join(root, "train"), os.path.join(root, "test")
        if not os.path.isdir(train):
            return self._from_batches(root)
        check_complete(train, find_classes(train), NUM_CLASSES)
        options: dict[str, Any] = vars(self) | {"root": train, "test_root": test, "image_size": SIZE}
        return ImageFolder(**options).make()

    def _from_batches(self, root: str) -> Benchmark:
        meta, train, test = (_read_published(root, name) for name in ("meta", "train", "test"))
        names = [name.decode() for name in meta[b"fine_label_names"]]
        order, tasks = self.choose(names)
        numbers = np.array([order.index(name) if name in order else -1 for name in names])  # by label of the data set
        labels = numbers[train[b"fine_labels"] + test[b"fine_labels"]]
        is_test = np.repeat([False, True], [len(train[b"data"]), len(test[b"data"])])
        used = np.flatnonzero(labels >= 0)
        split = Split(labels[used], is_test[used], order, tasks, [str(row) for row in range(len(used))])
        images = np.concatenate([train[b"data"], test[b"data"]])[used].reshape(-1, 3, SIZE, SIZE)
        return make_benchmark(images, split, self.input_size)


def _read_published(root: str, name: str) -> dict[bytes, Any]:
    """The content of a file of the archive. Unpickling can run code, so only the published files are unpickled."""
    path = os.path.join(root, name)
    try:
        data = read_bytes(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({describe_error(error)}); {REMEDY}") from None
    if hashlib.md5(data, usedforsecurity=False).hexdigest() != PUBLISHED_MD5[name]:
        raise ValueError(f"{path}: is not the published file (its MD5 differs); unpack {ARCHIVE} again; {REMEDY}")
    return pickle.loads(data, encoding="bytes")
