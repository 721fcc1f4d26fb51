"""Result tables: files that say once what their rows share, and of each row only what differs."""

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
        num_seeds = content.get("seeds", 1)
        if not isinstance(num_seeds, int) or num_seeds < 1:
            raise ValueError(f"seeds: {num_seeds!r} is not 1 or more")
        written = written_rows(path, settings)
        sources = Sources(settings, dict(written))
        rows = [TableRow(name, sources.options(name), num_seeds, sources.home(name)) for name in written]
        return ResultTable(path.stem, str(content.get("title", path.stem)), rows)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """A row as its file has it."""

    shared: list[dict[str, Any]]  # options of its table and its group, one layer over the other
    own: list[dict[str, Any]]
    like: str | None  # the row that it is like: what the row says goes before its group and its table


def written_rows(path: Path, settings: str) -> dict[str, WrittenRow]:
    """By full name."""
    content = read_yaml(path)
    check_keys(content, ("title", "seeds", "like", "groups", *LAYERS))
    rows = {}
    for group_name, group in section(content, "groups").items():
        check_keys(mapping(group, group_name), ("like", "rows", *LAYERS), str(group_name))
        for row_name, written in section(group, "rows").items():
            name = f"{path.stem}/{group_name}/{row_name}"
            row = mapping(written, name)
            layers = [(level, layer) for level in (content, group) for layer in ("shared", settings)]
            own = {key: value for key, value in row.items() if key not in ("like", *SETTINGS)}
            rows[name] = WrittenRow(
                shared=[mapping(level.get(layer), layer) for level, layer in layers],
                own=[own, mapping(row.get(settings), f"{name}: {settings}")],
                like=next((str(level["like"]) for level in (row, group, content) if "like" in level), None),
            )
    return rows


@dataclass(frozen=True, slots=True)
class Sources:
    """Rows of the files that were read so far: a row may be like one of another table."""

    settings: str
    rows: dict[str, WrittenRow]

    def options(self, name: str) -> dict[str, Any]:
        """The table's options, the group's, those of the row that it is like, its own: each laid over those before."""
        return reduce(merged, [*self.rows[name].shared, *self.own(name)], {})

    def own(self, name: str, before: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        if name in before:
            raise ValueError(f"{name}: is like itself; `like` must name another row")
        like = self.liked(name)
        return [*(self.own(like, (*before, name)) if like else []), *self.rows[name].own]

    def home(self, name: str) -> str:
        like = self.liked(name)
        return self.home(like) if like and self.options(like) == self.options(name) else name

    def liked(self, name: str) -> str | None:
        like = self.rows[name].like
        table = (like or "").partition("/")[0]
        if like and "/" in like and not any(known.startswith(f"{table}/") for known in self.rows):
            self.rows.update(written_rows(find_table(table), self.settings))
        if like and like not in self.rows:
            raise ValueError(f"{name}: like {like!r}, but there is no such row; name one as table/group/row")
        return like


def section(content: Mapping[str, Any], key: str) -> dict[Any, Any]:
    found = content.get(key)
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{key}: a section with at least one entry is needed; see experiments/{EXAMPLE}")
    return found


def mapping(value: Any, name: Any) -> dict[str, Any]:
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


def table_files() -> list[Path]:
    return [path for path in shipped_files(FOLDER) if path.name != PUBLISHED_FILE]


def shipped_tables() -> list[str]:
    return [path.stem for path in table_files()]
