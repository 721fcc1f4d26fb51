"""The file of an image cache: a .npy array of images, followed by a CRC-32 of each chunk of rows.

It is built in a temporary file that is locked: one process builds, the others wait and then find it finished. The
kernel releases the lock of a process that ends, so a temporary file without a lock is abandoned.
"""

import contextlib
import fcntl
import io
import math
import os
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dualnet import atomic

NAME_LENGTH = 32  # hexadecimal digits in the name of a cache
CHUNK_ROWS = 128  # 2.7 MB of 84-pixel images, which fits into the cache of a core
CHUNK_BYTES = 16_000_000  # at most, unless one image is larger

Write = Callable[[int], None]  # writes all images at their `offset` to the file descriptor


class CacheFile:
    def __init__(self, path: Path, shape: tuple[int, int, int, int]) -> None:
        self.path, self.shape = path, shape  # [N, C, H, W]
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
        self.header = stream.getvalue()
        self.row_bytes = math.prod(shape[1:])
        self.chunk_rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // self.row_bytes))
        self.num_chunks = -(-shape[0] // self.chunk_rows)
        self.end = self.offset(shape[0])  # where the checksums start

    def offset(self, row: int) -> int:
        return len(self.header) + row * self.row_bytes

    def open(self) -> int:
        """Open the file and return its descriptor. Raises FileNotFoundError, also if its size or header is wrong."""
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        complete = os.fstat(file).st_size == self.end + 4 * self.num_chunks
        if complete and os.pread(file, len(self.header), 0) == self.header:
            return file
        self.discard(file)
        os.close(file)
        raise FileNotFoundError(self.path)

    def read_row(self, file: int, row: int, into: np.ndarray) -> None:
        """Read a row of a chunk that was verified before. Raises OSError if the file has become too short."""
        if os.preadv(file, [into.data], self.offset(row)) != self.row_bytes:
            raise OSError("truncated")

    def check(self, file: int, chunk: int) -> None:
        """Raises OSError if the checksum of a chunk is wrong."""
        if os.pread(file, 4, self.end + 4 * chunk) != self._checksum(file, chunk):
            raise OSError("wrong checksum")

    def _checksum(self, file: int, chunk: int) -> bytes:
        """CRC-32, which detects every change within 4 bytes. It includes the name, so that files cannot be swapped."""
        start = self.offset(chunk * self.chunk_rows)
        data = os.pread(file, min(self.chunk_rows * self.row_bytes, self.end - start), start)
        return zlib.crc32(data, zlib.crc32(f"{self.path.stem} {chunk}".encode())).to_bytes(4, "little")

    def build(self, write: Write) -> int:
        """Write the file, unless another process does, and return its descriptor."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".tmp")
        with atomic.locked(unfinished) as file:
            try:
                if not self.path.exists():  # otherwise another process finished it while this one waited
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
        """Remove a damaged file, unless another process has already replaced it."""
        warnings.warn(f"{self.path}: the image cache is damaged; its images are decoded again", stacklevel=2)
        if atomic.is_at(file, self.path):
            self.path.unlink(missing_ok=True)


def remove_abandoned(folder: Path) -> None:
    """Delete temporary files of processes that have ended."""
    for path in folder.glob("[0-9a-f]" * NAME_LENGTH + ".tmp"):  # the folder may hold other files of the user
        with contextlib.suppress(OSError), atomic.locked(path, fcntl.LOCK_NB):  # OSError: in use, or no permission
            path.unlink()


def write_at(file: int, data: bytes | memoryview, offset: int) -> None:
    """Write all data at an offset. On a full disk this raises an error; a memory map would kill the process."""
    remaining = memoryview(data).cast("B")
    while remaining:
        written = os.pwrite(file, remaining, offset)
        remaining, offset = remaining[written:], offset + written
