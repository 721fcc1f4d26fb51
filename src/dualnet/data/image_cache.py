"""Images decoded once: one memory-mapped uint8 array on disk, found again by what their files are.

A cache is built under a temporary name that is its own lock: whoever holds it builds, the others wait and then find
the cache finished. The kernel frees the lock of a dead process, so nobody will finish a temporary file without a lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from dualnet import atomic
from dualnet.data.decode import MAX_PIXELS, RESIZE_RULE, decoding, read_image
from dualnet.machine import num_cores

FORMAT_VERSION = 1
NAME_LENGTH = 32  # hexadecimal digits of a cache's name
OWN_NAME = re.compile(rf"[0-9a-f]{{{NAME_LENGTH}}}")
NAMED = 10  # broken images in a message
IMAGES_AT_A_TIME = 128  # of 84 pixels: 2.7 MB, which stays in the cache of a core between decoding and writing

Progress = Callable[[int, int], None]  # (images done, images in all)


def cached_images(
    files: Sequence[str | os.PathLike[str]],
    size: int,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """The images of the files, in their order: uint8 [N, 3, size, size], a read-only memory map."""
    if not files:
        raise ValueError("there are no images to cache; check the folder or the list that names them")
    if size < 1 or size * size > MAX_PIXELS:
        raise ValueError(f"image_size is {size}; give 1 to {int(MAX_PIXELS**0.5)} pixels")
    paths = [os.path.abspath(file) for file in files]
    write = partial(_write_images, paths=paths, size=size, progress=progress)
    return _cached(paths, f"{size}\n{RESIZE_RULE}", (len(paths), 3, size, size), write, folder)


def cached_array(
    files: Sequence[str | os.PathLike[str]],
    choice: str,
    shape: tuple[int, int, int, int],
    read: Callable[[], np.ndarray],
    folder: Path | None = None,
) -> np.ndarray:
    """Many images out of a few files: uint8 of that shape, a read-only memory map.

    `choice` says which images of the files these are; `read` is called where they are not in the cache yet.
    """
    paths = [os.path.abspath(file) for file in files]
    return _cached(paths, f"{shape}\n{choice}", shape, partial(_write_array, shape=shape, read=read), folder)


Write = Callable[[int, int], None]  # (descriptor, offset) -> the images are in the file from there on


def _cached(paths: Sequence[str], rule: str, shape: tuple[int, ...], write: Write, folder: Path | None) -> np.ndarray:
    folder = folder or cache_folder()
    cache = folder / f"{_identity(paths, rule)}.npy"
    with _explained(folder, math.prod(shape)):
        _remove_abandoned(folder)
        images = _open_cache(cache, shape)
        if images is None:
            _build(cache, shape, write)
            images = _open_cache(cache, shape)
    assert images is not None
    return images


def cache_folder(name: str | None = None) -> Path:
    """The folder of that name, or the user's own."""
    return Path(name or os.environ.get("DUALNET_CACHE") or "~/.cache/dualnet").expanduser()


def _identity(paths: Sequence[str], rule: str) -> str:
    """A hash that changes with the files and with the way they are read."""
    digest = hashlib.sha256(f"{FORMAT_VERSION}\n{rule}\n".encode())
    missing = []
    for path in paths:
        try:
            found = os.stat(path)  # pathlib doubles the 0.2 s of 50,000 files
        except OSError:
            missing.append(path)
            continue
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path}: not a regular file; replace it or leave it out")
        digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    if missing:
        raise ValueError(f"{missing[0]}: no such image{_and_more(missing)}; restore it or leave it out")
    return digest.hexdigest()[:NAME_LENGTH]


def _and_more(bad: Sequence[object]) -> str:
    return f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""


@contextlib.contextmanager
def _explained(folder: Path, num_bytes: int) -> Iterator[None]:
    """What the system says against the cache folder, as one line with the remedy."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        need = f"free {num_bytes // 1_000_000 + 1} MB there" if full else "make it a folder that you may write to"
        raise ValueError(
            f"{folder}: the image cache cannot be used ({error.strerror or error}); "
            f"{need}, or name another folder with the option cache or the variable DUALNET_CACHE"
        ) from None


def _header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _open_cache(cache: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """The finished cache; None where there is none, or one that is cut short or not what it should be."""
    header = _header(shape)
    try:
        with cache.open("rb") as file:
            whole = os.fstat(file.fileno()).st_size == len(header) + math.prod(shape)
            if whole and file.read(len(header)) == header:
                return np.memmap(file, np.uint8, "r", len(header), shape)
    except FileNotFoundError:
        pass
    return None


def _build(cache: Path, shape: tuple[int, ...], write: Write) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    unfinished = cache.with_suffix(".tmp")
    with _locked(unfinished) as file:
        if _open_cache(cache, shape) is not None:  # somebody else finished it while this process waited
            unfinished.unlink(missing_ok=True)
            return
        try:
            header = _header(shape)
            os.ftruncate(file, 0)
            _write_at(file, header, 0)
            write(file, len(header))
            os.fsync(file)
            os.replace(unfinished, cache)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    atomic.flush(cache.parent)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Descriptor of the file, which this process alone holds. Waits for whoever holds it now."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, path):
                yield file
                return
        finally:
            os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Whether the open file still has that name: the process before may have finished it or given up."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob("*.tmp"):
        if not OWN_NAME.fullmatch(path.stem):  # the folder is the user's, and may hold other things
            continue
        with contextlib.suppress(OSError):  # in use by another process, already gone, or not ours to remove
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(file, path):
                    path.unlink()
            finally:
                os.close(file)


# Plain writes: a full disk is an error for them, but kills who writes through a memory map.


def _write_array(file: int, offset: int, shape: tuple[int, ...], read: Callable[[], np.ndarray]) -> None:
    images = np.ascontiguousarray(read())
    assert images.shape == shape and images.dtype == np.uint8
    _write_at(file, images.data, offset)


def _write_images(file: int, offset: int, paths: Sequence[str], size: int, progress: Progress | None) -> None:
    bad: list[str] = []
    done = 0
    write_part = partial(_write_part, file, offset, size)
    parts = [paths[start : start + IMAGES_AT_A_TIME] for start in range(0, len(paths), IMAGES_AT_A_TIME)]
    with decoding(), ThreadPoolExecutor(num_cores()) as pool:
        for part, errors in zip(parts, pool.map(write_part, range(len(parts)), parts), strict=True):
            bad, done = bad + errors, done + len(part)
            if progress is not None:
                progress(done, len(paths))
    if bad:
        raise ValueError(_broken(bad))


def _broken(bad: Sequence[str]) -> str:
    """Those that cannot be read, so that they need not be found one by one."""
    more = [f"and {len(bad) - NAMED} more"] if len(bad) > NAMED else []
    them = "them" if len(bad) > 1 else "it"
    return "; ".join([*bad[:NAMED], *more, f"replace {them} or leave {them} out"])


def _write_part(file: int, start: int, size: int, number: int, paths: Sequence[str]) -> list[str]:
    """Decode some images and write them to their place; returns what is wrong with those that cannot be read."""
    images = np.empty((len(paths), size, size, 3), np.uint8)
    bad = []
    for path, image in zip(paths, images, strict=True):
        try:
            read_image(path, image)
        except ValueError as error:
            bad.append(str(error))
    if not bad:
        planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        _write_at(file, planes.data, start + number * IMAGES_AT_A_TIME * images[0].nbytes)
    return bad


def _write_at(file: int, data: bytes | memoryview, offset: int) -> None:
    left = memoryview(data).cast("B")
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written
