"""The file of an image cache: a .npy array of images, followed by a CRC-32 of each chunk of its rows.

It is built under a temporary name that is its own lock: one process builds, the others wait and then find it finished.
The kernel releases the lock of a dead process, so a temporary file without a lock is abandoned.
"""

import contextlib
import fcntl
import io
import math
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dualnet import atomic

NAME_LENGTH = 32  # hexadecimal digits of a cache's name
OWN_NAME = re.compile(rf"[0-9a-f]{{{NAME_LENGTH}}}")
CHUNK_ROWS = 128  # images of 84 pixels: 2.7 MB, which fits the cache of a core
CHUNK_BYTES = 16_000_000  # at most, unless one image is larger

Write = Callable[[int], None]  # (descriptor): writes all images to their `offset` in the file


class DamagedError(Exception):
    """The file is not what was written."""


class CacheFile:
    def __init__(self, path: Path, shape: tuple[int, int, int, int]) -> None:
        self.path, self.shape = path, shape  # [N, C, H, W]
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
        self.header = stream.getvalue()
        self.row_bytes = math.prod(shape[1:])
        self.chunk_rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // self.row_bytes))
        self.num_chunks = -(-shape[0] // self.chunk_rows)
        self.end = self.offset(shape[0])  # of the images; the checksums follow

    def offset(self, row: int) -> int:
        return len(self.header) + row * self.row_bytes

    def open(self) -> int:
        """Descriptor of the finished file, whose images are not checked yet. A damaged one counts as not found."""
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        whole = os.fstat(file).st_size == self.end + 4 * self.num_chunks
        if whole and os.pread(file, len(self.header), 0) == self.header:
            return file
        self.discard(file)
        os.close(file)
        raise FileNotFoundError(self.path)

    def read_row(self, file: int, row: int, into: np.ndarray) -> None:
        """A row of a chunk that was checked before."""
        if os.preadv(file, [into.data], self.offset(row)) != self.row_bytes:
            raise DamagedError

    def check(self, file: int, chunk: int) -> None:
        if os.pread(file, 4, self.end + 4 * chunk) != self._checksum(file, chunk):
            raise DamagedError

    def _checksum(self, file: int, chunk: int) -> bytes:
        """CRC-32 finds every change within 4 bytes. It begins with the name: another cache's chunk does not match."""
        start = self.offset(chunk * self.chunk_rows)
        data = os.pread(file, min(self.chunk_rows * self.row_bytes, self.end - start), start)
        return zlib.crc32(data, zlib.crc32(f"{self.path.stem} {chunk}".encode())).to_bytes(4, "little")

    def build(self, write: Write) -> int:
        """Descriptor of the file, once it is finished."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".tmp")
        with locked(unfinished) as file:
            try:
                if not self.path.exists():  # else another process finished it while this one waited
                    self._write(file, write)
                    os.replace(unfinished, self.path)
            finally:
                unfinished.unlink(missing_ok=True)
        atomic.flush(self.path.parent)
        return self.open()

    def _write(self, file: int, write: Write) -> None:
        os.ftruncate(file, 0)
        write_at(file, self.header, 0)
        write(file)
        checksums = [self._checksum(file, chunk) for chunk in range(self.num_chunks)]
        write_at(file, b"".join(checksums), self.end)
        os.fsync(file)

    def discard(self, file: int) -> None:
        """Remove a damaged file, unless another process has already replaced the one that is open here."""
        warnings.warn(f"{self.path}: the image cache is damaged; its images are decoded again", stacklevel=2)
        if _is_at(file, self.path):
            self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, flags: int = 0) -> Iterator[int]:
    """Descriptor of the file, locked for this process alone. Waits for the process that holds it, unless LOCK_NB."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | flags)
            if _is_at(file, path):
                yield file
                return
        finally:
            os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Whether the open file still has that name: another process may have renamed or removed it."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def remove_abandoned(folder: Path) -> None:
    for path in folder.glob("*.tmp"):
        if OWN_NAME.fullmatch(path.stem):  # the folder is the user's, and may hold other files
            with contextlib.suppress(OSError), locked(path, fcntl.LOCK_NB):  # OSError: in use, or not ours to remove
                path.unlink()


def write_at(file: int, data: bytes | memoryview, offset: int) -> None:
    """Plain writes: on a full disk they raise an error, where a memory map would kill the process."""
    left = memoryview(data).cast("B")
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written
