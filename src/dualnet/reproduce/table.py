"""Result tables: files that say once what their rows share, and of each row only what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Any

from dualnet.files import read_yaml
from dualnet.options import check_keys, merged, nearest
from dualnet.runs.experiment import Experiment, parse
from dualnet.runs.option_files import find, shipped_files

PAPER = ("table-1", "table-2", "table-3", "table-4", "table-5")
SETTINGS = ("authors", "paper")
LAYERS = ("shared", *SETTINGS)  # options of a table or a group: always, or under one of the settings
FOLDER = "tables"  # below experiments/
EXAMPLE = f"{FOLDER}/table-1.yaml"
PUBLISHED_FILE = "published.yaml"  # lies beside the tables and is none


@dataclass(frozen=True, slots=True)
class TableRow:
    name: str  # table/group/row
    options: dict[str, Any]  # nested, as the tables have them
    num_seeds: int
    home: str  # the row whose runs serve this one too; mostly itself

    def experiment(self, overrides: Mapping[str, Any] | None = None) -> Experiment:
        """Raises ValueError, one line, if the options are not sound."""
        try:
            return parse({**merged(self.options, overrides or {}), "name": self.home})
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    @property
    def group(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def short_name(self) -> str:
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class ResultTable:
    name: str
    title: str
    rows: list[TableRow]


def read_tables(name_or_file: str, settings: str = "authors") -> list[ResultTable]:
    """The table of that name, in that file, or `all` those of the paper."""
    if settings not in SETTINGS:
        raise ValueError(f"--settings {settings}: there are {' and '.join(SETTINGS)}")
    return [read_table(name, settings) for name in (PAPER if name_or_file == "all" else (name_or_file,))]


def read_table(name_or_file: str, settings: str) -> ResultTable:
    path = find_table(name_or_file)
    content = read_yaml(path)
    try:
        return ResultTable(path.stem, str(content.get("title", path.stem)), list(rows_of(path, content, settings)))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def rows_of(path: Path, content: Mapping[str, Any], settings: str) -> list[TableRow]:
    check_keys(content, ("title", "seeds", "like", "groups", *LAYERS))
    rows = []
    for group_name, group in section(content, "groups").items():
        check_keys(mapping(group, group_name), ("like", "rows", *LAYERS), group_name)
        for row_name in section(group, "rows"):
            way = (path.stem, str(group_name), str(row_name))
            rows.append(make_row(path, way, settings, content.get("seeds", 1)))
    return rows


def make_row(path: Path, way: tuple[str, str, str], settings: str, num_seeds: Any) -> TableRow:
    name, options = "/".join(way), options_of(path, way, settings)
    if not isinstance(num_seeds, int) or num_seeds < 1:
        raise ValueError(f"seeds: {num_seeds!r} is not 1 or more")
    like, home = liked(path, way), name
    if like is not None and options_of(*like, settings) == options:
        home = make_row(*like, settings, num_seeds).home
    return TableRow(name, options, num_seeds, home)


def options_of(path: Path, way: tuple[str, str, str], settings: str) -> dict[str, Any]:
    """The table's options, the group's, those of the row that it is like, and its own: each laid over those before."""
    content = read_yaml(path)
    levels = (content, content["groups"][way[1]])
    layers = [level.get(key) or {} for level in levels for key in ("shared", settings)]
    return reduce(merged, [*layers, *own_options(path, way, settings)], {})


def own_options(path: Path, way: tuple[str, str, str], settings: str, depth: int = 0) -> list[Mapping[str, Any]]:
    """The options that a row itself has, after those of the row it is like."""
    if depth > 10:
        raise ValueError(f"{'/'.join(way)}: is like itself; `like` must name another row")
    row = mapping(read_yaml(path)["groups"][way[1]]["rows"][way[2]], "/".join(way))
    like = liked(path, way)
    before = [] if like is None else own_options(*like, settings, depth + 1)
    return [*before, {key: row[key] for key in row if key not in ("like", *SETTINGS)}, row.get(settings) or {}]


def liked(path: Path, way: tuple[str, str, str]) -> tuple[Path, tuple[str, str, str]] | None:
    """File and way of the row that this one is like; what the row says goes before its group and its table."""
    content = read_yaml(path)
    group = content["groups"][way[1]]
    levels = (group["rows"][way[2]], group, content)
    name = next((level["like"] for level in levels if level and "like" in level), None)
    if name is None:
        return None
    words = str(name).split("/")
    place = (path if words[0] == path.stem else find_table(words[0])) if len(words) == 3 else None
    rows = section(section(read_yaml(place), "groups").get(words[1]) or {}, "rows") if place else {}
    if place is None or words[2] not in rows:
        raise ValueError(f"{'/'.join(way)}: like {name!r}, but there is no such row; name one as table/group/row")
    return place, (words[0], words[1], words[2])


def section(content: Mapping[str, Any], key: str) -> dict[Any, Any]:
    found = content.get(key)
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{key}: a section with at least one entry is needed; see experiments/{EXAMPLE}")
    return found


def mapping(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{name}: options are needed, not {value!r}")
    return value


def select(rows: Sequence[TableRow], patterns: Sequence[str]) -> list[TableRow]:
    """The rows whose name, with or without the table's, fits a pattern such as `core50-*/er`; all if there is none."""
    for pattern in patterns:
        if not any(fits(row, pattern) for row in rows):
            names = [row.name for row in rows] + [row.name.partition("/")[2] for row in rows]
            hint = nearest(pattern, names) or "; `dualnet reproduce TABLE --list` names them all"
            raise ValueError(f"--rows {pattern}: no such row{hint}")
    return [row for row in rows if not patterns or any(fits(row, pattern) for pattern in patterns)]


def fits(row: TableRow, pattern: str) -> bool:
    return fnmatchcase(row.name, pattern) or fnmatchcase(row.name.partition("/")[2], pattern)


def find_table(name_or_file: str) -> Path:
    return find(name_or_file, table_files(), "table")


def shipped_tables() -> list[str]:
    return [path.stem for path in table_files()]


def table_files() -> list[Path]:
    return [path for path in shipped_files(FOLDER) if path.name != PUBLISHED_FILE]
