"""Folders of images, one per class: which there are, and the files in them."""

import os
import warnings
from collections.abc import Sequence

import numpy as np

from dualnet.data.decode import SUFFIXES

ONE_PER_CLASS = "name a folder with a sub-folder of images per class"
KINDS = " ".join(sorted(SUFFIXES))
JUNK = frozenset(("__macosx", "__pycache__", "@eadir", "$recycle.bin", "system volume information", "lost+found"))
TRAIN, TEST = ("train", "training"), ("test", "testing", "val", "valid", "validation")  # names of splits


def absolute(folder: str) -> str:
    """A relative folder is relative to the working directory, wherever the experiment file lies."""
    return os.path.abspath(os.path.expanduser(folder))


def unpacked(root: str, name: str) -> str:
    """The folder of that name, as an archive has it, below root; or root itself, if it was unpacked there."""
    below = os.path.join(absolute(root), name)
    return below if os.path.isdir(below) else absolute(root)


def entries(folder: str, remedy: str = ONE_PER_CLASS) -> list[os.DirEntry[str]]:
    path = absolute(folder)
    try:
        with os.scandir(path) as found:
            return list(found)
    except (OSError, ValueError) as error:
        where = "" if path == folder else f" (looked for {path}: a relative path starts at the working directory)"
        raise ValueError(
            f"{folder}: cannot be read as a folder ({getattr(error, 'strerror', error)}); {remedy}{where}"
        ) from None


def class_folders(root: str) -> list[str]:
    """Names of the sub-folders, in no order. Hidden ones and those that tools leave behind are no classes."""
    names = [e.name for e in entries(root) if not e.name.startswith(".") and os.path.isdir(e.path)]
    if junk := sorted(name for name in names if name.lower() in JUNK):
        warnings.warn(f"{os.path.join(root, junk[0])}: left out, {junk[0]!r} is no class; remove it", stacklevel=2)
    names = [name for name in names if name not in junk]
    for name in names:
        if any("\ud800" <= letter <= "\udfff" for letter in name):  # so Python decodes bytes that are no text
            raise ValueError(f"{root}: the name of the folder {name!r} is not UTF-8; rename it")
    if not names:
        raise ValueError(f"{root}: no class sub-folders; put the images of every class in a sub-folder with its name")
    return names


def check_filled(root: str, names: Sequence[str]) -> None:
    """Every class folder has an image; else the whole is perhaps a folder of splits."""
    empty = [name for name in names if not any(is_image(entry.name) for entry in entries(os.path.join(root, name)))]
    if not empty:
        return
    train, test = (
        next((name for wanted in split for name in empty if name.lower() == wanted), None) for split in (TRAIN, TEST)
    )
    if train is not None:
        test_root = f" and test_root: {os.path.join(root, test)}" if test is not None else ""
        train_root = os.path.join(root, train)
        raise ValueError(f"benchmark.root {root!r} looks like a folder of splits: use root: {train_root}{test_root}")
    more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
    raise ValueError(
        f"{os.path.join(root, empty[0])}: no images ({KINDS}) in this class folder{more}; "
        "add images, remove the folder, or name the other classes with class_order"
    )


def images_by_class(folders: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Files of the classes, sorted by name within each, and their class numbers int64 [n]."""
    by_class = [_images_of(folder) for folder in folders]
    labels = np.repeat(np.arange(len(folders)), [len(files) for files in by_class])
    return [file for files in by_class for file in files], labels


def _images_of(folder: str) -> list[str]:
    files = sorted(entry.path for entry in entries(folder) if is_image(entry.name))
    if not files:
        raise ValueError(f"{folder}: no images ({KINDS}) in this class folder; add images or remove the folder")
    return files


def warn_of_others(folders: Sequence[str]) -> None:
    """One warning for all that lies beside the images and is left out."""
    found = (entry for folder in folders for entry in entries(folder))
    others = [entry.path for entry in found if not entry.name.startswith(".") and not is_image(entry.name)]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        warnings.warn(f"{min(others)}{more}: left out; only {KINDS} directly in a class folder are read", stacklevel=2)


def is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES
