"""Finding the YAML files of experiments, searches and tables, by path or by the name of a shipped one."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from dualnet.options import suggest

SUFFIXES = (".yaml", ".yml")


def find(name_or_file: str, shipped: Sequence[Path], kind: str) -> Path:
    """The file at that path, or the shipped one of that name."""
    path, names = Path(name_or_file), {path.stem: path for path in shipped}
    if name_or_file in names:
        return names[name_or_file]
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; give a file that ends in .yaml, or a name (`dualnet list` has them)")
    if path.suffix in SUFFIXES:
        if not path.is_file():
            raise ValueError(f"{path}: no such file; `dualnet list` names the {kind} files that are shipped")
        return path
    if path.is_file():
        raise ValueError(f"{path}: a file must end in .yaml; rename it")
    hint = suggest(name_or_file, names)
    raise ValueError(f"{name_or_file}: no such {kind}{hint} (`dualnet list` names them all)")


def shipped_files(below: str = "") -> list[Path]:
    """The files in experiments/ or a folder inside of it; in the installed package it is named shipped/."""
    package = Path(str(files("dualnet")))
    folders = (package / "shipped", package.parent.parent / "experiments")
    found = next(((folder / below).glob("*.yaml") for folder in folders if folder.is_dir()), ())
    return sorted(found, key=lambda file: file.stem)
