"""Terminal output of the report, for 80 columns. Text from run folders is escaped."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from dualnet.text import printable

from .findings import findings
from .rows import Comparison
from .tables import RESULT_HEADER, Best, TextTable, result_notes, results_table, trend_tables, unfinished_table


def terminal_view(comparison: Comparison, page: Path) -> Group:
    """Results, unfinished runs, findings, definitions, and the path of the HTML page."""
    tables = list(_results(comparison))
    tables += [rich_table(table, title) for title, table in trend_tables(comparison).items()]
    if comparison.unfinished:
        tables.append(rich_table(unfinished_table(comparison), "not finished"))
    found = [Text(printable(sentence)) for sentence in findings(comparison)]
    notes = [Text(printable(note), style="dim") for note in result_notes(comparison)] if comparison.rows else []
    return Group(*(part for table in tables for part in (table, "")), *found, *notes, Text(f"Page: {printable(page)}"))


def _results(comparison: Comparison) -> Iterator[RichTable]:
    """Results and costs of each setting, in two tables so that long names fit."""
    for rows in comparison.settings():
        table, costs = results_table(rows, comparison), len(RESULT_HEADER)
        yield rich_table(table, rows[0].setting_name, range(costs))
        learners = TextTable(table.header, table.rows[: len(rows)], table.numeric)
        yield rich_table(learners, "cost", [0, *range(costs, len(table.header))])


def rich_table(table: TextTable, title: str, columns: Sequence[int] | None = None) -> RichTable:
    """A table with all columns, or some. Lines without a name belong to the line above and are dim."""
    columns = range(len(table.header)) if columns is None else columns
    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    shown.title, shown.title_justify = Text(printable(title), style="bold"), "left"
    for i in columns:
        numeric = i in table.numeric
        justify = "right" if numeric else "left"
        shown.add_column(Text(printable(table.header[i])), justify=justify, no_wrap=numeric, overflow="fold")
    for line in table.rows:
        cells = [
            Text(printable(line[i]).replace(" ± ", "±"), style="bold" if isinstance(line[i], Best) else "")
            for i in columns
        ]
        shown.add_row(*cells, style="" if line[0] else "dim")
    return shown
