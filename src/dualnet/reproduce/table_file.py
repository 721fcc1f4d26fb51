"""Result tables: YAML files of options shared by all rows, by a group of rows, or given for one row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import reduce
from itertools import takewhile
from pathlib import Path
from typing import Any

from dualnet.experiments.experiment import Experiment, parse
from dualnet.experiments.named_files import find, shipped_files
from dualnet.files import read_yaml
from dualnet.jobs.rows import Row
from dualnet.options import check_absent, check_keys, merge, whole_number

PAPER = ("table-1", "table-2", "table-3", "table-4", "table-5")
SETTINGS = ("authors", "paper")
LAYERS = ("shared", *SETTINGS)  # options of a table or a group: for all settings, or for one of them
LINKS = ("like", "beside")  # keys that name another row: the one to inherit from, the published one to compare with
FOLDER = "tables"  # below experiments/
EXAMPLE = f"{FOLDER}/table-1.yaml"
PUBLISHED_FILE = "published.yaml"  # in the same folder, but not a table


@dataclass(frozen=True, slots=True)
class TableRow:
    name: str  # table/group/row
    options: dict[str, Any]  # nested, as in the file
    num_seeds: int
    runs_of: str  # the row whose runs are used; mostly the row itself
    title: str = ""  # of its table
    compared_with: str | None = None  # the published row; None: that of the same name

    def experiment(self, overrides: Mapping[str, Any] | None = None) -> Experiment:
        """Raises ValueError, in one line, if an option is invalid."""
        try:
            return parse({**merge(self.options, overrides or {}), "name": self.runs_of})
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    @property
    def group(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def names(self) -> tuple[str, str]:
        """The name with and without that of the table."""
        return self.name, self.name.partition("/")[2]


def rows_to_run(
    rows: Sequence[TableRow], out: Path, seeds: Sequence[int] | None, overrides: Mapping[str, Any]
) -> list[Row]:
    """The rows with their folders below `out`. Those that share runs become one, with the seeds of all of them.

    Raises ValueError if an option of a row is invalid.
    """
    check_absent(
        overrides,
        seed="a table runs every row with its own seeds; use --seeds",
        name="every row of a table has its own name; use --out for another folder",
    )
    shared: dict[str, Row] = {}
    for row in rows:
        wanted = list(seeds or range(row.num_seeds))
        first = shared.get(row.runs_of) or Row(row.name, row.experiment(overrides), (), out / row.runs_of)
        shared[row.runs_of] = replace(first, seeds=list(dict.fromkeys([*first.seeds, *wanted])))
    return list(shared.values())


def read_rows(name_or_file: str, settings: str = "authors") -> list[TableRow]:
    """The rows of a shipped table or of a file; `all` means every table of the paper."""
    names = PAPER if name_or_file == "all" else (name_or_file,)
    return [row for name in names for row in read_table(name, settings)]


def read_table(name_or_file: str, settings: str) -> list[TableRow]:
    path = find(name_or_file, table_files(), "table")
    content = read_yaml(path)
    try:
        num_seeds = whole_number(content.get("seeds", 1), "seeds")
        written, title = written_rows(content, path.stem, settings), str(content.get("title", path.stem))
        return [table_row(name, written, settings, num_seeds, title) for name in list(written)]
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """A row as written in its file."""

    shared: list[dict[str, Any]]  # options of its table and group; later ones override earlier ones
    own: list[dict[str, Any]]
    like: str | None  # the row to inherit from; given by the row, its group or its table, in this order
    beside: str | None  # the published row to compare with; given likewise


def written_rows(content: Mapping[str, Any], table: str, settings: str) -> dict[str, WrittenRow]:
    """The rows of a file by their full names."""
    check_keys(content, ("title", "seeds", *LINKS, "groups", *LAYERS))
    rows = {}
    for group_name, group in section(content, "groups").items():
        check_keys(mapping(group, group_name), (*LINKS, "rows", *LAYERS), str(group_name))
        for row_name, written in section(group, "rows").items():
            name = f"{table}/{group_name}/{row_name}"
            row = mapping(written, name)
            layers = [(level, layer) for level in (content, group) for layer in ("shared", settings)]
            own = {key: value for key, value in row.items() if key not in (*LINKS, *SETTINGS)}
            rows[name] = WrittenRow(
                shared=[mapping(level.get(layer), layer) for level, layer in layers],
                own=[own, mapping(row.get(settings), f"{name}: {settings}")],
                **{key: next((str(at[key]) for at in (row, group, content) if key in at), None) for key in LINKS},
            )
    return rows


def table_row(name: str, written: dict[str, WrittenRow], settings: str, num_seeds: int, title: str) -> TableRow:
    """Merge the options of the table, the group, the inherited rows and the row itself; later ones override.

    A row that ends up with the same options as a row it inherits from uses the runs of that row.
    """
    names = inheritance(name, written, settings)
    options = [
        reduce(merge, [*written[names[i]].shared, *(own for like in names[i:][::-1] for own in written[like].own)], {})
        for i in range(len(names))
    ]
    num_same = len(list(takewhile(lambda other: other == options[0], options)))
    return TableRow(name, options[0], num_seeds, names[num_same - 1], title, written[name].beside)


def inheritance(name: str, written: dict[str, WrittenRow], settings: str) -> list[str]:
    """The row, the row it is `like`, and so on. Rows of other tables are read and added to `written`."""
    names = [name]
    while like := written[names[-1]].like:
        table = like.partition("/")[0]
        if "/" in like and not any(known.startswith(f"{table}/") for known in written):
            written |= written_rows(read_yaml(find(table, table_files(), "table")), table, settings)
        if like not in written:
            raise ValueError(f"{names[-1]}: like: no such row {like!r}; rows are named table/group/row")
        if like in names:
            raise ValueError(f"{like}: like: the row inherits from itself; name another row")
        names.append(like)
    return names


def section(content: Mapping[str, Any], key: str) -> dict[Any, Any]:
    entries = content.get(key)
    if not isinstance(entries, dict) or not entries:
        raise ValueError(f"{key}: a section with at least one entry is needed; see experiments/{EXAMPLE}")
    return entries


def mapping(value: Any, name: Any) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise ValueError(f"{name}: options are needed, not {value!r}")
    return value or {}


def select(rows: Sequence[TableRow], patterns: Sequence[str]) -> list[TableRow]:
    """The rows whose names match a pattern such as `core50-*/er`; all rows if there are no patterns."""
    chosen = list(rows) if not patterns else []
    for pattern in patterns:
        matching = [row for row in rows if any(fnmatchcase(name, pattern) for name in row.names)]
        if not matching:
            raise ValueError(f"--rows {pattern}: no such row; `dualnet reproduce TABLE --list` names them all")
        chosen += matching
    return [row for row in rows if row in chosen]


def table_files() -> list[Path]:
    return [path for path in shipped_files(FOLDER) if path.name != PUBLISHED_FILE]


def shipped_tables() -> list[str]:
    return [path.stem for path in table_files()]
