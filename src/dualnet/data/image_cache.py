"""A cache of decoded images on disk: a .npy file for each list of image files."""

import errno
import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

import numpy as np
from filelock import FileLock

from dualnet import atomic
from dualnet.data.class_folders import IgnoredFilesWarning
from dualnet.data.decode import FORMATS, MAX_SIZE, RESIZE_RULE, OnError, UnreadableError, decoding, read_image
from dualnet.machine import num_cores

CHUNK_ROWS = 128  # images that a thread decodes and writes at a time
Shape = tuple[int, int, int, int]


class CachedImages:
    """Images uint8 [N, C, H, W] in a memory-mapped file; indexing by a row or several rows copies them."""

    def __init__(self, files: Sequence[str | PathLike[str]], size: int, folder: str | PathLike[str] | None = None):
        """Decode the files to squares, in their order, unless the cache has them; `folder` as for `cache_folder`."""
        if not files:
            raise ValueError("there are no images; check the folder or the list that names them")
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"image_size: {size} is not 1 to {MAX_SIZE} pixels")
        self.shape = (len(files), 3, size, size)
        self._paths = [os.path.abspath(file) for file in files]
        file = cache_folder(folder) / f"{_identity(self._paths, size)}.npy"
        with _explained(file.parent, self.shape):
            images = _open(file, self.shape)
            self._images = _build(file, self._paths, self.shape) if images is None else images

    def __len__(self) -> int:
        return self.shape[0]

    def file(self, row: int) -> str:
        return self._paths[row]

    def __getitem__(self, rows: int | np.ndarray) -> np.ndarray:
        return self._images.take(rows, axis=0)


@contextmanager
def _explained(folder: Path, shape: Shape) -> Iterator[None]:
    """Turns an error of the system into a ValueError with a remedy."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        need = (
            f"free {math.prod(shape) // 1_000_000 + 1} MB there"
            if is_full
            else "make it a folder that you may write to"
        )
        remedy = f"{need}, or name another folder with the option cache or the variable DUALNET_CACHE"
        reason = f"the image cache cannot be used ({error.strerror or error})"
        raise ValueError(f"{folder}: {reason}; {remedy}") from None


def _open(file: Path, shape: Shape) -> np.ndarray | None:
    """The images in the file, memory-mapped; None if it is missing or incomplete."""
    try:
        images = np.lib.format.open_memmap(file, mode="r")
    except (FileNotFoundError, ValueError):  # ValueError: damaged, or shorter than its header says
        return None
    is_complete = file.stat().st_size == images.offset + images.nbytes
    return np.asarray(images) if is_complete and images.shape == shape and images.dtype == np.uint8 else None


def _build(file: Path, paths: Sequence[str], shape: Shape) -> np.ndarray:
    """Decode the images into the file. One process at a time builds in a folder; the others wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.parent / "lock"):
        atomic.remove_temporary(file.parent, "*.npy.*")
        images = _open(file, shape)
        if images is None:  # otherwise another process has built it meanwhile
            with atomic.replacing(file) as unfinished:
                _decode(paths, shape, unfinished)
                if _identity(paths, shape[-1]) != file.stem:
                    raise ValueError(
                        f"{paths[0]}: this or another image changed while images were decoded; start again"
                    )
            images = _open(file, shape)
    assert images is not None
    return images


def _decode(paths: Sequence[str], shape: Shape, into: Path) -> None:
    """Write a .npy file of all images, with all cores. Raises UnreadableError with all that cannot be read."""
    with into.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        header = file.tell()

    def decode_chunk(start: int) -> dict[str, str]:
        images, unreadable = _decoded(paths[start : start + CHUNK_ROWS], shape[-1])
        with into.open("r+b") as file:
            file.seek(header + start * math.prod(shape[1:]))
            file.write(images.data)
        return unreadable

    with decoding(), ThreadPoolExecutor(num_cores()) as pool:
        chunks = list(pool.map(decode_chunk, range(0, len(paths), CHUNK_ROWS)))
    if reasons := {path: reason for chunk in chunks for path, reason in chunk.items()}:
        raise UnreadableError(reasons, len(paths))


def _decoded(paths: Sequence[str], size: int) -> tuple[np.ndarray, dict[str, str]]:
    """Images uint8 [n, 3, size, size], and reasons for those that cannot be read."""
    images, reasons = np.empty((len(paths), size, size, 3), np.uint8), {}
    for path, image in zip(paths, images, strict=True):
        try:
            read_image(path, image)
        except UnreadableError as error:
            reasons |= error.reasons
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), reasons


def unreadable(files: Sequence[str], size: int, on_error: OnError, folder: str | None = None) -> dict[str, str]:
    """The images to leave out because they cannot be read, with reasons; a warning names them.

    Raises UnreadableError if none is left. With `stop` the result is empty: the cache will name them in its error.
    """
    if on_error == "stop":
        return {}
    reasons = find_unreadable(files, size, folder)
    bad = {file: reasons[path] for file in files if (path := os.path.abspath(file)) in reasons}
    if bad and len(bad) == len(set(files)):  # a file may be given twice
        raise UnreadableError(bad, len(bad))
    if bad:
        warnings.warn(f"{UnreadableError(bad).summary(len(files))}; left out", IgnoredFilesWarning, stacklevel=2)
    return bad


def find_unreadable(files: Sequence[str], size: int, folder: str | None) -> dict[str, str]:
    """Reasons why images cannot be read, by absolute path. Stored beside the cache for the next call."""
    note = cache_folder(folder) / f"{_identity([os.path.abspath(file) for file in files], size)}.json"
    with suppress(OSError):  # not there yet
        return json.loads(note.read_text())
    try:
        CachedImages(files, size, folder)
    except UnreadableError as error:
        atomic.write(note, json.dumps(error.reasons))
        return error.reasons
    return {}


def cache_folder(name: str | PathLike[str] | None = None) -> Path:
    """The folder of that name, or $DUALNET_CACHE, or ~/.cache/dualnet."""
    return Path(name or os.environ.get("DUALNET_CACHE") or "~/.cache/dualnet").expanduser()


def _identity(paths: Sequence[str], size: int) -> str:
    """A hash that changes with the files and with the way they are decoded."""
    digest = hashlib.sha256(f"{size}\n{RESIZE_RULE}\n{FORMATS}\n".encode())
    for path in paths:
        try:
            status = os.stat(path)  # pathlib takes twice as long: 0.4 s for 50,000 files
            state = f"{status.st_size}\0{status.st_mtime_ns}"
        except OSError:
            state = "missing"  # or a broken link: decoding will report it
        digest.update(f"{path}\0{state}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]
