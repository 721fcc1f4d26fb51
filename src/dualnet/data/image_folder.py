"""A benchmark of your own: a folder with one sub-folder of images per class."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.data.class_folders import absolute, check_filled, class_folders, images_by_class, warn_of_others
from dualnet.data.image_cache import cached_images
from dualnet.data.splits import Split, benchmark_of, held_out, stream_order, tasks_of

VALIDATION_TASKS = 3  # at most; as many as the paper's


@dataclass(frozen=True)
class ImageFolder(BenchmarkConfig):
    """Classes are sub-folders; test images come from a second folder, or are a share of every class."""

    root: str  # folder with one sub-folder of images per class; relative: from the working directory
    test_root: str | None = None  # the same for testing; None: hold out test_share of every class
    test_share: float = 0.2  # held out of every class where there is no test_root
    split_seed: int = 0  # chooses what is held out
    classes_per_task: int = 5  # new classes in every task
    num_tasks: int | None = None  # None: as many as the classes make; fewer leaves the last classes out
    class_order: list[str] | None = None  # the classes to use, in order of the stream; None: all, sorted by name
    order_seed: int | None = None  # shuffles the sorted names; None: leaves them sorted
    image_size: int = 84  # side in pixels of the images as stored
    input_size: int | None = None  # side that the networks see; None: as stored
    cache: str | None = None  # folder of decoded images; None: $DUALNET_CACHE or ~/.cache/dualnet

    def make(self) -> Benchmark:
        names, tasks = self._classes()
        files, labels, is_test = self._files(names)
        return self._benchmark(files, Split(labels, is_test, names, tasks, files))

    def current_split(self) -> str | None:
        if not os.path.isdir(absolute(self.root)):  # the images of a finished run need not be here
            return None
        names, tasks = self._classes()
        files, labels, is_test = self._files(names)
        return Split(labels, is_test, names, tasks, files).digest

    def make_validation(self) -> Benchmark:
        """The first three tasks, of training images alone: test_share of each class is held out of these once more.

        The classes are those of the benchmark; no image that `make` tests is among them.
        """
        names, tasks = self._classes()
        tasks = tasks[:VALIDATION_TASKS]
        files, labels, is_test = self._files(names)
        kept = np.flatnonzero(~is_test & (labels < tasks[-1].stop))
        names, files, labels = names[: tasks[-1].stop], [files[row] for row in kept], labels[kept]
        _check_two_each(labels, names)
        is_test = held_out(labels, files, names, self.test_share, self.split_seed)
        return self._benchmark(files, Split(labels, is_test, names, tasks, files), validation=True)

    def _benchmark(self, files: list[str], split: Split, validation: bool = False) -> Benchmark:
        return benchmark_of(cached_images(files, self.image_size, self.cache), split, self.input_size, validation)

    def _classes(self) -> tuple[list[str], list[range]]:
        """Names by class number, and class numbers by task."""
        names = stream_order(class_folders(self.root), self.class_order, self.order_seed)
        check_filled(self.root, names)
        tasks = tasks_of(len(names), self.classes_per_task, self.num_tasks)
        return names[: tasks[-1].stop], tasks

    def _files(self, names: Sequence[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Files, class numbers int64 [n], and which are for testing, bool [n]."""
        files, labels = _images(self.root, names)
        if self.test_root is None:
            return files, labels, held_out(labels, files, names, self.test_share, self.split_seed)
        _check_test_root(self.root, self.test_root)
        test_files, test_labels = _images(self.test_root, names)
        is_test = np.repeat([False, True], [len(files), len(test_files)])
        return files + test_files, np.concatenate([labels, test_labels]), is_test


def _check_two_each(labels: np.ndarray, names: Sequence[str]) -> None:
    counts = np.bincount(labels, minlength=len(names))
    if (few := np.flatnonzero(counts < 2)).size:
        raise ValueError(
            f"image_folder: class {names[few[0]]!r} has {counts[few[0]]} training images, and validation takes some of "
            "them to learn from and some to test; add images or leave the class out"
        )


def _check_test_root(root: str, test_root: str) -> None:
    if different := set(class_folders(root)) ^ set(class_folders(test_root)):
        raise ValueError(
            f"{test_root}: its classes are not those of {root}: {min(different)!r} is in one of them only; "
            "give both folders the same sub-folders"
        )
    if os.path.samefile(absolute(root), absolute(test_root)):
        raise ValueError(f"{test_root}: test_root is root itself; name another folder, or leave it out for test_share")


def _images(root: str, names: Sequence[str]) -> tuple[list[str], np.ndarray]:
    folders = [os.path.join(root, name) for name in names]
    files, labels = images_by_class(folders)
    warn_of_others(folders)
    return files, labels
