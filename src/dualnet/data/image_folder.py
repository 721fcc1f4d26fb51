"""A benchmark of your own: a folder with one sub-folder of images per class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.data.decode import SUFFIXES
from dualnet.data.image_cache import cache_folder, cached_images
from dualnet.data.splits import benchmark_of, held_out, stream_order, tasks_of


@dataclass(frozen=True)
class ImageFolder(BenchmarkConfig):
    """Classes are sub-folders; test images come from a second folder, or are a share of every class."""

    root: str  # folder with one sub-folder of images per class
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
        names = stream_order(_class_names(self.root), self.class_order, self.order_seed)
        tasks = tasks_of(len(names), self.classes_per_task, self.num_tasks)
        names = names[: len(tasks) * self.classes_per_task]
        files, labels = _images(self.root, names)
        if self.test_root is None:
            is_test = held_out(labels, self.test_share, self.split_seed)
        else:
            _check_test_root(self.root, self.test_root)
            test_files, test_labels = _images(self.test_root, names)
            is_test = np.repeat([False, True], [len(files), len(test_files)])
            files, labels = files + test_files, np.concatenate([labels, test_labels])
        images = partial(cached_images, files, self.image_size, cache_folder(self.cache))
        return benchmark_of(images, labels, is_test, names, tasks, self.input_size, files)


def _class_names(root: str) -> list[str]:
    if not root:
        raise ValueError("image_folder: root is empty; name the folder that holds one sub-folder of images per class")
    names = [entry.name for entry in _entries(root) if entry.is_dir() and not entry.name.startswith(".")]
    if not names:
        raise ValueError(f"{root}: no class sub-folders; put the images of every class in a sub-folder with its name")
    return names


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(os.path.expanduser(folder)) as entries:
            return list(entries)
    except OSError as error:
        raise ValueError(
            f"{folder}: cannot be read as a folder ({error.strerror}); name one with a sub-folder of images per class"
        ) from None


def _check_test_root(root: str, test_root: str) -> None:
    if different := set(_class_names(root)) ^ set(_class_names(test_root)):
        raise ValueError(
            f"{test_root}: its classes are not those of {root}: {min(different)!r} is in one of them only; "
            "give both folders the same sub-folders"
        )
    if os.path.realpath(root) == os.path.realpath(test_root):
        raise ValueError(f"{test_root}: test_root is root itself; name another folder, or leave it out for test_share")


def _images(root: str, names: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Files of the classes, sorted by name within each, and their class numbers int64 [n]."""
    by_class = [_images_of(os.path.join(root, name)) for name in names]
    labels = np.repeat(np.arange(len(names)), [len(files) for files in by_class])
    return [file for files in by_class for file in files], labels


def _images_of(folder: str) -> list[str]:
    files = sorted(entry.path for entry in _entries(folder) if _is_image(entry.name))
    if not files:
        raise ValueError(f"{folder}: empty class, no {' '.join(sorted(SUFFIXES))}; add images or remove the folder")
    return files


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES
