"""The report in the terminal, by rich. Eighty columns are enough."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .rows import Comparison, Row
from .tables import RESULT_HEADER, Cell, Table, notes, result_lines, unfinished_table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable


def terminal_view(comparison: Comparison, page: Path) -> Group:
    """The results, what is not finished, what the numbers mean, and where the page lies."""
    from rich.console import Group
    from rich.text import Text

    tables = [_results(rows, comparison) for rows in comparison.settings()]
    if comparison.unfinished:
        tables.append(_rich_table(unfinished_table(comparison), "not finished"))
    lines = [Text(note, style="dim") for note in notes(comparison)] if comparison.rows else []
    return Group(*(part for table in tables for part in (table, "")), *lines, Text(f"Page: {page}"))


def _results(rows: Sequence[Row], comparison: Comparison) -> RichTable:
    """One table for rows that may be compared; its title holds what they share, which saves a column."""
    header = [title for title in RESULT_HEADER if title != "protocol"]
    lines = [[line[0], *line[2:]] for line in result_lines(rows, comparison)]
    narrow = [[Cell(cell.text.replace(" ± ", "±"), cell.best) for cell in line] for line in lines]
    return _rich_table(Table(header, narrow, numeric=range(1, len(header))), rows[0].setting_name)


def _rich_table(table: Table, title: str) -> RichTable:
    """Names are text, never markup."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    shown.title, shown.title_justify = Text(title, style="bold"), "left"
    for i, word in enumerate(table.header):
        numeric = i in table.numeric
        shown.add_column(Text(word), justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for line in table.rows:
        shown.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in line))
    return shown
