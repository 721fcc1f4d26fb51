"""The images of `dualnet learn`: folders with a sub-folder per class, and folders of unlabelled images."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from dualnet.data.class_folders import class_folders, files_by_class, images_in
from dualnet.data.decode import OnError
from dualnet.data.image_cache import CachedImages, unreadable
from dualnet.data.splits import text_digest


@dataclass(frozen=True)
class ImageFiles:
    """Image files with their class names, None if unlabelled, and their pixels."""

    paths: Sequence[str]
    names: Sequence[str | None]
    decoded: CachedImages  # uint8 [N, 3, size, size]

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def classes(self) -> list[str]:
        """Class names in order of their first images, which is sorted order."""
        return list(dict.fromkeys(name for name in self.names if name is not None))

    @property
    def digest(self) -> str:
        """Digest of classes, file names and file sizes: independent of the location of the folder."""
        lines = (
            f"{name}\0{os.path.basename(path)}\0{os.path.getsize(path)}\n"
            for path, name in zip(self.paths, self.names, strict=True)
        )
        return text_digest("".join(lines))


def read_files(root: str | None, unlabelled: str | None, size: int, on_error: OnError = "stop") -> ImageFiles:
    """The images of the class sub-folders of `root`, sorted, then those directly in the folder `unlabelled`."""
    files = {} if root is None else files_by_class(root, sorted(class_folders(root)), "learn")
    pairs: list[tuple[str, str | None]] = [(path, name) for name, paths in files.items() for path in paths]
    if unlabelled is not None:
        pairs += [(path, None) for path in images_in(unlabelled, "name a folder of unlabelled images")]
    bad = unreadable([path for path, _ in pairs], size, on_error)
    paths, names = zip(*(pair for pair in pairs if pair[0] not in bad), strict=True)
    return ImageFiles(paths, names, CachedImages(paths, size))
