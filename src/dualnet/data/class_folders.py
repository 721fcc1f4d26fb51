"""Folders with a sub-folder of images per class: finding the classes and their files."""

import os
import warnings
from collections.abc import Iterator, Sequence

from dualnet.data.decode import HEIC_HINT, SUFFIXES
from dualnet.text import join_first

ONE_PER_CLASS = "name a folder with a sub-folder of images per class"
SUFFIX_LIST = " ".join(sorted(SUFFIXES)) + HEIC_HINT  # for messages
SYSTEM_FOLDERS = {"__macosx", "__pycache__", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
TRAIN, TEST = ("train", "training"), ("test", "testing", "val", "valid", "validation")  # names of splits


class IgnoredFilesWarning(UserWarning):
    """Files or folders in a folder of images are not used."""


def absolute_path(folder: str) -> str:
    """The absolute path; a relative one starts at the working directory, not at the experiment file."""
    return os.path.abspath(os.path.expanduser(folder))


def find_unpacked(root: str, name: str) -> str:
    """The top folder of an unpacked archive: that name inside of root, or root itself."""
    inside = os.path.join(absolute_path(root), name)
    return inside if os.path.isdir(inside) else absolute_path(root)


def list_entries(folder: str, remedy: str = ONE_PER_CLASS) -> list[os.DirEntry[str]]:
    """The content of a folder. Raises ValueError if it cannot be read."""
    path = absolute_path(folder)
    try:
        with os.scandir(path) as content:
            return list(content)
    except (OSError, ValueError) as error:
        where = "" if path == folder else f" (looked for {path}: a relative path starts at the working directory)"
        reason = getattr(error, "strerror", error)
        raise ValueError(f"{folder}: cannot be read as a folder ({reason}); {remedy}{where}") from None


def find_classes(root: str) -> list[str]:
    """Names of the class sub-folders, in no order. Hidden folders and SYSTEM_FOLDERS are not classes."""
    names = [e.name for e in list_entries(root) if not e.name.startswith(".") and os.path.isdir(e.path)]
    if system := sorted(name for name in names if name.lower() in SYSTEM_FOLDERS):
        path = os.path.join(root, system[0])
        warnings.warn(f"{path}: ignored, it is not a class; remove it", IgnoredFilesWarning, stacklevel=2)
    names = [name for name in names if name not in system]
    for name in names:
        if any("\ud800" <= letter <= "\udfff" for letter in name):  # how Python decodes bytes that are not UTF-8
            raise ValueError(f"{root}: the name of the folder {name!r} is not UTF-8; rename it")
    if not names:
        parent = os.path.dirname(absolute_path(root))
        meant = os.path.normpath(os.path.join(root, os.pardir))
        holds_images = any(is_image(entry.name) for entry in list_entries(root))
        if holds_images and meant != os.curdir and len(next(os.walk(parent))[1]) > 1:
            raise ValueError(f"{root}: the images of one class; did you mean {meant}, with a sub-folder per class?")
        raise ValueError(f"{root}: no class sub-folders; put the images of each class into a sub-folder with its name")
    return names


def files_by_class(root: str, names: Sequence[str]) -> dict[str, list[str]]:
    """The images of each class, sorted by name. One warning names other files, which are ignored."""
    content = {name: list_entries(os.path.join(root, name)) for name in names}
    files = {name: sorted(entry.path for entry in content[name] if is_image(entry.name)) for name in names}
    if empty := [name for name in names if not files[name]]:
        raise ValueError(_without_images(root, empty))
    all_entries = [entry for folder in content.values() for entry in folder]
    if others := [e.path for e in all_entries if not is_image(e.name) and not e.name.startswith(".")]:
        reason = f"only files directly in a class folder are read: {SUFFIX_LIST}"
        warnings.warn(f"{join_first(sorted(others), 1)}: ignored; {reason}", IgnoredFilesWarning, stacklevel=2)
    return files


def _without_images(root: str, empty: Sequence[str]) -> str:
    """The message for class folders without images: they may be splits that contain the class folders."""
    lower = {name.lower(): name for name in reversed(empty)}
    train, test = (next((lower[name] for name in split if name in lower), None) for split in (TRAIN, TEST))
    if train is not None:
        testing = f", and {os.path.join(root, test)} for testing" if test else ""
        return f"{root}: looks like a folder of splits; give {os.path.join(root, train)} for training{testing}"
    more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
    first = os.path.join(root, empty[0])
    below = ", give this folder instead," if any(entry.is_dir() for entry in list_entries(first)) else ""
    return f"{first}: no images ({SUFFIX_LIST}) in this class folder{more}; add images{below} or remove the folder"


def images_in(folder: str, remedy: str = "name a folder that contains images") -> list[str]:
    """The images directly in a folder, sorted by name: regular files and links to them."""
    names = sorted(e.name for e in list_entries(folder, remedy) if is_image(e.name) and os.path.isfile(e.path))
    if not names:
        raise ValueError(f"{folder}: no images ({SUFFIX_LIST}) directly in this folder; {remedy}")
    return [os.path.join(folder, name) for name in names]


def images_below(folder: str) -> list[str]:
    """The images in a folder and its sub-folders, those of a folder before those below it, each sorted by name."""
    images = list(_walk(folder))
    if not images:
        raise ValueError(f"{folder}: no images ({SUFFIX_LIST}) in this folder and below; name a folder with images")
    return images


def _walk(folder: str) -> Iterator[str]:
    """Without hidden folders, SYSTEM_FOLDERS and links to folders, which lead anywhere.

    A folder that cannot be read is listed itself, as an image that `read_image` cannot read.
    """
    try:
        content = sorted(list_entries(folder), key=lambda entry: entry.name)
    except ValueError:
        yield folder
        return
    yield from (os.path.join(folder, e.name) for e in content if is_image(e.name) and os.path.isfile(e.path))
    for entry in content:
        is_hidden = entry.name.startswith(".") or entry.name.lower() in SYSTEM_FOLDERS
        if entry.is_dir(follow_symlinks=False) and not is_hidden:
            yield from _walk(os.path.join(folder, entry.name))


def is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES
