"""Files that are there as a whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dualnet.text import printable

TEMPORARY = ".tmp"  # how the name of a file in the making ends


def write(path: Path, data: bytes | str) -> None:
    """Write beside the path, flush to the disk, then put into place: a crash leaves the old file or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with naming(path):
            with temporary.open("wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """What the system says about a full disk does not name the file, or names one in the making: name this one."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def make_folder(path: Path, remedy: str) -> None:
    """With those above it. Raises ValueError where a file is in the way, or the user may not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise ValueError(f"{printable(path)}: cannot be made ({error.strerror}); {remedy}") from error


def flush(path: Path) -> None:
    """Make what was written to a file, or renamed in a folder, last through a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
