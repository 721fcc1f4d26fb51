"""Files that are written as a whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dualnet.text import escape

TEMPORARY = ".tmp"  # suffix of a file that is being written


def write(path: Path, data: bytes | str) -> None:
    """Write a file as a whole.

    A device, a pipe or an open file such as /dev/stdout is written to directly, since a rename would replace it.
    """
    content = data.encode() if isinstance(data, str) else data
    with naming(path):
        if is_stream(path):
            with path.open("ab") as stream:
                stream.write(content)
        else:
            with replacing(path) as temporary:
                temporary.write_bytes(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file that is flushed to the disk and then renamed: a crash leaves the old file or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
        flush(path.parent)
    finally:
        with contextlib.suppress(OSError):  # an error above is the one to report
            temporary.unlink()


def is_stream(path: Path) -> bool:
    return (path.exists() and not path.is_file()) or (path.is_symlink() and path.is_relative_to("/dev"))


def remove_temporary(folder: Path, names: str = "*") -> None:
    """Delete the temporary files of a process that was killed while it wrote."""
    for path in folder.glob(f"{names}{TEMPORARY}"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the path into errors of the system: on a full disk they name no file, or the temporary one."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def make_folder(path: Path, remedy: str) -> None:
    """Make a folder with its parents. Raises ValueError if a file is in the way or permission is missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise ValueError(f"{escape(path)}: cannot be made ({error.strerror}); {remedy}") from error


def flush(path: Path) -> None:
    """Flush a file, or the renames in a folder, to the disk, so that they survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
