"""Files of options, for experiments, searches and tables: where the shipped ones lie, and what is in one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

SUFFIXES = (".yaml", ".yml")
MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`


class GivenTwiceError(ValueError):
    """A key that is in a mapping twice: the first of the two would be lost."""


class Loader(yaml.SafeLoader):
    """Refuses what YAML forbids and PyYAML lets pass: one key twice. What `<<` brings may be said again."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            word = (key.tag, str(key.value))
            if word in seen and key.tag != MERGE:
                line = key.start_mark.line + 1
                raise GivenTwiceError(f"line {line}: `{key.value}` is given twice; keep one of them")
            seen.add(word)
        return node


def read_yaml(path: Path, example: str) -> dict[str, Any]:
    """The mapping in a file, not to be written into; one below experiments/ shows how it looks."""
    try:
        mapping = parsed_yaml(path.read_text(encoding="utf-8"))
    except GivenTwiceError as error:
        raise ValueError(f"{path}: {error}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read as YAML ({trouble(error)})") from error
    if not isinstance(mapping, dict):
        raise ValueError(f"{path}: not a YAML mapping of options; see experiments/{example}")
    return mapping


@lru_cache(maxsize=32)  # every row of a table reads its table, and the row that it is like
def parsed_yaml(text: str) -> Any:
    return yaml.load(text, Loader)


def trouble(error: Exception) -> str:
    """What is wrong in a file, and where, in one line and in words for users."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON: line {error.lineno}, column {error.colno}: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8: byte {error.start}"
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, (AttributeError, TypeError)):
        return "it does not hold what belongs there"
    words = error.strerror if isinstance(error, OSError) else None
    return " ".join((words or str(error)).split())


def find(name_or_file: str, shipped: Sequence[Path], kind: str) -> Path:
    """The file of that name, or among those shipped."""
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
    hint = nearest(name_or_file, names)
    raise ValueError(f"{name_or_file}: no such {kind}{hint} (`dualnet list` names them all)")


def nearest(word: str, valid: Iterable[str], prefix: str = "") -> str:
    """A hint at the nearest valid word, or nothing."""
    near = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.5)
    return f"; did you mean {prefix + '.' if prefix else ''}{near[0]}?" if near else ""


def shipped_files(below: str = "") -> list[Path]:
    """Those in experiments/, or in a folder below: inside the installed package, or beside `src` in a checkout."""
    package = Path(str(files("dualnet")))
    folders = (package / "experiments", package.parent.parent / "experiments")
    return next((sorted((folder / below).glob("*.yaml")) for folder in folders if folder.is_dir()), [])
