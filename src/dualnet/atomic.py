"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

TEMPORARY = ".tmp"  # how the name of a file in the making ends


def write(path: Path, data: bytes | str) -> None:
    """Write beside the path, flush to the disk, then put into place: a crash leaves the old file or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Make a rename in the folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
