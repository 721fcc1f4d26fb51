"""Folders of images, one per class: which there are, and the files in them."""

import os
import warnings
from collections.abc import Sequence

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
        reason = getattr(error, "strerror", error)
        raise ValueError(f"{folder}: cannot be read as a folder ({reason}); {remedy}{where}") from None


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


def files_by_class(root: str, names: Sequence[str]) -> dict[str, list[str]]:
    """The images of each class, sorted by name. One warning tells of all that lies beside them and is left out."""
    found = {name: entries(os.path.join(root, name)) for name in names}
    files = {name: sorted(entry.path for entry in found[name] if is_image(entry.name)) for name in names}
    if empty := [name for name in names if not files[name]]:
        raise ValueError(_without_images(root, empty))
    beside = [entry for some in found.values() for entry in some if not is_image(entry.name)]
    if others := [entry.path for entry in beside if not entry.name.startswith(".")]:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        warnings.warn(f"{min(others)}{more}: left out; only {KINDS} directly in a class folder are read", stacklevel=2)
    return files


def _without_images(root: str, empty: Sequence[str]) -> str:
    """What is wrong with class folders that have no image: perhaps they are splits, with the classes below them."""
    lower = {name.lower(): name for name in reversed(empty)}
    train, test = (next((lower[name] for name in split if name in lower), None) for split in (TRAIN, TEST))
    if train is not None:
        use = f"root: {os.path.join(root, train)}" + (f" and test_root: {os.path.join(root, test)}" if test else "")
        return f"benchmark.root {root!r} looks like a folder of splits: use {use}"
    more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
    remedy = "add images, remove the folder, or name the other classes with class_order"
    return f"{os.path.join(root, empty[0])}: no images ({KINDS}) in this class folder{more}; {remedy}"


def images_in(folder: str, remedy: str = "name a folder that holds some") -> list[str]:
    """The images directly in a folder, sorted by name: regular files and links to them."""
    names = sorted(e.name for e in entries(folder, remedy) if is_image(e.name) and os.path.isfile(e.path))
    if not names:
        raise ValueError(f"{folder}: no images ({KINDS}) directly in this folder; {remedy}")
    return [os.path.join(folder, name) for name in names]


def is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES
