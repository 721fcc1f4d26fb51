"""Your own images, a folder with one sub-folder per class: as a benchmark, or as the images of `dualnet learn`."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dualnet.data.benchmark import VALIDATION_TASKS, Benchmark
from dualnet.data.class_folders import IgnoredFilesWarning, absolute_path, files_by_class, find_classes, images_in
from dualnet.data.decode import OnError
from dualnet.data.file_benchmark import FileBenchmark, make_split
from dualnet.data.image_cache import CachedImages, unreadable
from dualnet.data.splits import Split, Tasks, choose_tests, text_digest
from dualnet.text import join_first

Files = Mapping[str, Sequence[str]]  # by class


@dataclass(frozen=True)
class ImageFolder(FileBenchmark):
    """Classes are sub-folders. Test images come from a second folder, or are a share of each class."""

    root: str  # folder with one sub-folder of images per class, relative to the working directory
    test_root: str | None = None  # the same for test images; None: test_share of each class is held out
    test_share: float = 0.2  # of each class, if there is no test_root
    split_seed: int = 0  # chooses the images that are held out
    image_size: int = 84  # side in pixels of the images as stored
    validation_tasks: int = VALIDATION_TASKS  # how many of the first tasks are for choosing options
    on_error: OnError = "stop"  # about unreadable images; skip: they are left out with a warning

    def make(self) -> Benchmark:
        return self.decoded(self._split(), self.image_size)

    def make_validation(self) -> Benchmark:
        """The first `validation_tasks` with training images only, of which test_share of each class is held out again.

        The classes are those of the benchmark, but no test image of `make` is used.
        """
        whole = self._split()
        tasks = whole.tasks[: self.validation_tasks]
        files: dict[str, list[str]] = {}
        for number, name in enumerate(whole.class_names[: tasks[-1][-1] + 1]):
            rows = np.flatnonzero((whole.labels == number) & ~whole.is_test)
            files[name] = [whole.names[row] for row in rows.tolist()]
            if len(files[name]) < 2:
                needs = "validation needs 2 or more; add images or leave the class out"
                raise ValueError(f"image_folder: class {name!r} has {len(files[name])} training images; {needs}")
        return self.decoded(self._hold_out(files, tasks), self.image_size, validation=True)

    def _split(self) -> Split:
        """The split of all images; those of `test_root` come last."""
        classes = find_classes(self.root)
        names, tasks = self.choose(classes)
        files = files_by_class(self.root, names)
        if self.test_root is None:
            return self._hold_out(self._readable(files)[0], tasks)
        _check_test_root(self.root, classes, self.test_root)
        parts = enumerate(self._readable(files, files_by_class(self.test_root, names)))
        listed = [(path, name, test == 1) for test, part in parts for name in sorted(names) for path in part[name]]
        return make_split(listed, names, tasks)

    def _readable(self, *parts: Files) -> Sequence[Files]:
        """The files, without the unreadable ones if `on_error` is skip."""
        paths = [path for part in parts for name in sorted(part) for path in part[name]]
        bad = unreadable(paths, self.image_size, self.on_error, self.cache)
        return [{name: [path for path in some if path not in bad] for name, some in part.items()} for part in parts]

    def _hold_out(self, files: Files, tasks: Tasks) -> Split:
        if name := next((name for name, paths in files.items() if len(paths) == 1), None):
            reason = "its only image is held out for testing; add images, give test_root, or leave the class out"
            raise ValueError(f"class {name!r} has no training images: {reason}")
        tests = choose_tests(files, self.test_share, self.split_seed)
        listed = [(path, name, path in tests) for name in sorted(files) for path in files[name]]
        return make_split(listed, list(files), tasks)


def _check_test_root(root: str, classes: Sequence[str], test_root: str) -> None:
    if different := set(classes) ^ set(find_classes(test_root)):
        what = f"its classes differ from those of {root}: only one of them has {min(different)!r}"
        raise ValueError(f"{test_root}: {what}; give both folders the same sub-folders")
    if os.path.samefile(absolute_path(root), absolute_path(test_root)):
        raise ValueError(f"{test_root}: test_root is the same folder as root; name another one, or leave it out")


@dataclass(frozen=True)
class ImageFiles:
    """The pixels of image files with their class names, None if unlabelled."""

    names: Sequence[str | None]
    decoded: CachedImages  # uint8 [N, 3, size, size]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def classes(self) -> list[str]:
        """Class names in order of their first images, which is sorted order."""
        return list(dict.fromkeys(name for name in self.names if name is not None))

    @property
    def digest(self) -> str:
        """Digest of classes, file names and file sizes: independent of the location of the folder."""
        files = ((name, self.decoded.file(row)) for row, name in enumerate(self.names))
        lines = (f"{name}\0{os.path.basename(path)}\0{os.path.getsize(path)}\n" for name, path in files)
        return text_digest("".join(lines))


def read_files(root: str, unlabelled: str | None, size: int, on_error: OnError) -> ImageFiles:
    """The images of the class sub-folders of `root`, sorted, then those directly in the folder `unlabelled`."""
    files = files_by_class(root, sorted(find_classes(root)))
    pairs: list[tuple[str, str | None]] = [(path, name) for name, paths in files.items() for path in paths]
    if unlabelled is not None:
        pairs += [(path, None) for path in images_in(unlabelled, "name a folder of unlabelled images")]
    bad = unreadable([path for path, _ in pairs], size, on_error)
    paths, names = zip(*(pair for pair in pairs if pair[0] not in bad), strict=True)
    if missing := sorted({*files} - {*names}):
        reason = "left out, since no image in these class folders can be read"
        warnings.warn(f"{join_first(missing)}: {reason}", IgnoredFilesWarning, stacklevel=2)
    return ImageFiles(names, CachedImages(paths, size))
