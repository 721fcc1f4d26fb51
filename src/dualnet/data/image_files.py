"""Images of some folders for a model to learn: those with a class, one sub-folder each, and those without."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from dualnet.data.class_folders import class_folders, files_by_class, images_in
from dualnet.data.decode import OnError
from dualnet.data.image_cache import CachedImages, unreadable


@dataclass(frozen=True)
class ImageFiles:
    """Files with the names of their classes, None where it is not known, and their pixels."""

    paths: Sequence[str]
    names: Sequence[str | None]
    decoded: CachedImages  # uint8 [N, 3, size, size]

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def classes(self) -> list[str]:
        """In the order of their first images: sorted, as the folders are read."""
        return list(dict.fromkeys(name for name in self.names if name is not None))

    @property
    def digest(self) -> str:
        """Of classes, file names and sizes: wherever the folder lies, the same files are the same images."""
        lines = (
            f"{name}\0{os.path.basename(path)}\0{os.path.getsize(path)}\n"
            for path, name in zip(self.paths, self.names, strict=True)
        )
        content = "".join(lines).encode("utf-8", "surrogateescape")
        return hashlib.blake2b(content, digest_size=8).hexdigest()


def read_files(root: str | None, unlabelled: str | None, size: int, on_error: OnError = "stop") -> ImageFiles:
    """The images of class sub-folders, sorted, then those directly in a folder without classes."""
    files = {} if root is None else files_by_class(root, sorted(class_folders(root)))
    pairs: list[tuple[str, str | None]] = [(path, name) for name, paths in files.items() for path in paths]
    if unlabelled is not None:
        pairs += [(path, None) for path in images_in(unlabelled, "name a folder of images that have no class")]
    bad = unreadable([path for path, _ in pairs], size, on_error)
    paths, names = zip(*(pair for pair in pairs if pair[0] not in bad), strict=True)
    return ImageFiles(paths, names, CachedImages(paths, size))
