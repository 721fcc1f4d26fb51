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
    if path.suffix in SUFFIXES and path.is_file():
        return path
    hint = suggest(name_or_file, names)
    start = f"{hint} Else" if hint else ";"
    raise ValueError(f"{name_or_file}: no such {kind}{start} give a .yaml file or a name (`dualnet list` has them)")


def shipped_files(below: str = "") -> list[Path]:
    """The files in experiments/ or a folder inside of it; in the installed package it is named shipped/."""
    package = Path(str(files("dualnet")))
    folders = (package / "shipped", package.parent.parent / "experiments")
    shipped = next(((folder / below).glob("*.yaml") for folder in folders if folder.is_dir()), ())
    return sorted(shipped, key=lambda file: file.stem)
