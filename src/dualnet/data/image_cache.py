"""A cache of decoded images on disk, keyed by the image files and verified when it is read."""

import errno
import hashlib
import json
import math
import os
import threading
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from os import PathLike
from pathlib import Path

import numpy as np

from dualnet import atomic
from dualnet.data import cache_file
from dualnet.data.cache_file import CacheFile
from dualnet.data.class_folders import IgnoredFilesWarning
from dualnet.data.decode import FORMATS, MAX_SIZE, RESIZE_RULE, OnError, UnreadableError, decoding, read_image
from dualnet.machine import num_cores

FORMAT_VERSION = 2


class CachedImages:
    """Images uint8 [N, C, H, W] on disk; indexing by a row or several rows copies them into memory.

    A chunk is verified when this object first reads from it. A file that is damaged, or truncated while in use, is
    built again with a warning. It is not memory-mapped: truncating a mapped file would kill the process.
    """

    def __init__(self, files: Sequence[str | PathLike[str]], size: int, folder: str | PathLike[str] | None = None):
        """Decode the files to squares, in their order, unless the cache has them; `folder` as for `cache_folder`."""
        if not files:
            raise ValueError("there are no images; check the folder or the list that names them")
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"image_size: {size} is not 1 to {MAX_SIZE} pixels")
        self.shape = (len(files), 3, size, size)
        self._paths = [os.path.abspath(file) for file in files]
        self._name = _identity(self._paths, size)
        self._file = CacheFile(cache_folder(folder) / f"{self._name}.npy", self.shape)
        self._lock = threading.Lock()
        self._open()

    def __len__(self) -> int:
        return self.shape[0]

    def file(self, row: int) -> str:
        return self._paths[row]

    def __getitem__(self, rows: int | np.ndarray) -> np.ndarray:
        wanted = np.atleast_1d(rows)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of {len(self)} cached images")
        descriptor, checked = self._opened
        try:
            images = self._read(wanted, descriptor, checked)
        except OSError:
            self._build_again(descriptor)
            images = self._read(wanted, *self._opened)
        return images if np.ndim(rows) else images[0]

    def _read(self, rows: np.ndarray, descriptor: int, checked: set[int]) -> np.ndarray:
        if new := set((rows // self._file.chunk_rows).tolist()) - checked:
            with ThreadPoolExecutor(min(num_cores(), len(new))) as pool:
                list(pool.map(self._file.check, repeat(descriptor), new))
            checked |= new
        images = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for row, image in zip(rows.tolist(), images, strict=True):
            self._file.read_row(descriptor, row, image)
        return images

    def _build_again(self, damaged: int) -> None:
        with self._lock:
            if self._opened[0] == damaged:  # otherwise another thread has rebuilt it
                self._file.discard(damaged)
                self._open()

    def _open(self) -> None:
        """Open the file; build it first if it does not exist."""
        try:
            cache_file.remove_abandoned(self._file.path.parent)
            try:
                descriptor = self._file.open()
            except FileNotFoundError:
                descriptor = self._file.build(self._write)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            megabytes = math.prod(self.shape) // 1_000_000 + 1
            need = f"free {megabytes} MB there" if full else "make it a folder that you may write to"
            remedy = f"{need}, or name another folder with the option cache or the variable DUALNET_CACHE"
            reason = f"the image cache cannot be used ({error.strerror or error})"
            raise ValueError(f"{self._file.path.parent}: {reason}; {remedy}") from None
        self._opened: tuple[int, set[int]] = descriptor, set()  # the file, and its verified chunks
        weakref.finalize(self, os.close, descriptor)

    def _write(self, descriptor: int) -> None:
        """Decode the images into the file. Raises UnreadableError with all that cannot be read."""
        starts = range(0, len(self), self._file.chunk_rows)
        with decoding(), ThreadPoolExecutor(num_cores()) as pool:
            chunks = list(pool.map(self._write_chunk, repeat(descriptor), starts))
        if any(chunks):
            raise UnreadableError({path: reason for chunk in chunks for path, reason in chunk.items()}, len(self))
        if _identity(self._paths, self.shape[-1]) != self._name:
            raise ValueError(f"{self._paths[0]}: this or another image changed while images were decoded; start again")

    def _write_chunk(self, descriptor: int, start: int) -> dict[str, str]:
        """Decode some images into the file. Returns reasons for those that cannot be read."""
        paths, bad = self._paths[start : start + self._file.chunk_rows], {}
        images = np.empty((len(paths), *self.shape[2:], 3), np.uint8)
        for path, image in zip(paths, images, strict=True):
            try:
                read_image(path, image)
            except UnreadableError as error:
                bad |= error.reasons
        planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        cache_file.write_at(descriptor, planes.data, self._file.offset(start))
        return bad


def unreadable(files: Sequence[str], size: int, on_error: OnError, folder: str | None = None) -> dict[str, str]:
    """The images to leave out because they cannot be read, with reasons; a warning names them.

    Raises UnreadableError if none is left. With `stop` the result is empty: the cache will name them in its error.
    """
    reasons = find_unreadable(files, size, folder) if on_error == "skip" else {}
    bad = {file: reasons[path] for file in files if (path := os.path.abspath(file)) in reasons} if reasons else {}
    if bad and len(bad) == len(set(files)):  # a file may be given twice
        raise UnreadableError(bad, len(bad))
    if bad:
        warnings.warn(f"{UnreadableError(bad).summary(len(files))}; left out", IgnoredFilesWarning, stacklevel=2)
    return bad


def find_unreadable(files: Sequence[str], size: int, folder: str | None) -> dict[str, str]:
    """Reasons why images cannot be read, by absolute path. Stored beside the cache for the next call."""
    from dualnet.files import READ_ERRORS, read_json  # not at the top: it loads PyYAML

    note = cache_folder(folder) / f"{_identity([os.path.abspath(file) for file in files], size)}.json"
    try:
        stored = read_json(note)
        if stored["formats"] == [*FORMATS]:  # those of optional packages may have been added
            return dict(stored["unreadable"])
    except READ_ERRORS:
        pass
    try:
        CachedImages(files, size, folder)
    except UnreadableError as error:
        atomic.write(note, json.dumps({"formats": FORMATS, "unreadable": error.reasons}))
        return error.reasons
    return {}


def cache_folder(name: str | PathLike[str] | None = None) -> Path:
    """The folder of that name, or $DUALNET_CACHE, or ~/.cache/dualnet."""
    return Path(name or os.environ.get("DUALNET_CACHE") or "~/.cache/dualnet").expanduser()


def _identity(paths: Sequence[str], size: int) -> str:
    """A hash that changes with the files and with the way they are decoded."""
    digest = hashlib.sha256(f"{FORMAT_VERSION}\n{size}\n{RESIZE_RULE}\n".encode())
    for path in paths:
        try:
            found = os.stat(path)  # pathlib takes twice as long: 0.4 s for 50,000 files
            state = f"{found.st_size}\0{found.st_mtime_ns}"
        except OSError:
            state = "missing"  # or a broken link: decoding will report it
        digest.update(f"{path}\0{state}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[: cache_file.NAME_LENGTH]
