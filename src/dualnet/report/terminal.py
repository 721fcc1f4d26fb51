"""The report in a terminal of 80 columns or more, by rich. Names from run folders are escaped: they are data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dualnet.text import printable

from .rows import Comparison, ReportRow
from .tables import RESULT_HEADER, Cell, TextTable, result_header, result_lines, result_notes, unfinished_table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable


def terminal_view(comparison: Comparison, page: Path) -> Group:
    """The results, unfinished runs, the meaning of the figures, and the path of the page."""
    from rich.console import Group
    from rich.text import Text

    tables = [table for rows in comparison.settings() for table in _results(rows, comparison)]
    if comparison.unfinished:
        tables.append(_rich_table(unfinished_table(comparison), "not finished"))
    lines = [Text(printable(note), style="dim") for note in result_notes(comparison)] if comparison.rows else []
    return Group(*(part for table in tables for part in (table, "")), *lines, Text(f"Page: {printable(page)}"))


def _results(rows: Sequence[ReportRow], comparison: Comparison) -> list[RichTable]:
    """Results and costs of one setting. Two tables leave space for names, and the setting as a title saves a column."""
    header, lines = result_header(comparison), result_lines(rows, comparison)
    metrics, costs = range(2, len(RESULT_HEADER)), range(len(RESULT_HEADER), len(header))
    return [
        _rich_table(_columns(header, lines, metrics), rows[0].setting_name),
        _rich_table(_columns(header, lines, costs), "cost"),
    ]


def _columns(header: Sequence[str], lines: Sequence[Sequence[Cell]], chosen: Sequence[int]) -> TextTable:
    """The first column and the chosen ones."""
    narrow = [[line[0], *(Cell(line[i].text.replace(" ± ", "±"), line[i].best) for i in chosen)] for line in lines]
    return TextTable([header[0], *(header[i] for i in chosen)], narrow, numeric=range(1, len(chosen) + 1))


def _rich_table(table: TextTable, title: str) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    shown.title, shown.title_justify = Text(printable(title), style="bold"), "left"
    for i, word in enumerate(table.header):
        numeric = i in table.numeric
        shown.add_column(
            Text(printable(word)), justify="right" if numeric else "left", no_wrap=numeric, overflow="fold"
        )
    for line in table.rows:
        shown.add_row(*(Text(printable(cell.text), style="bold" if cell.best else "") for cell in line))
    return shown
