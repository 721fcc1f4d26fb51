"""The report and its tables for a terminal of 80 columns. All text is escaped."""

from collections.abc import Collection
from pathlib import Path

from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from dualnet.report import tables
from dualnet.report.cells import Number, Table
from dualnet.report.findings import sentences
from dualnet.report.rows import Comparison
from dualnet.text import compact_table, escape

# In two lines, so that a ledger fits its columns.
HEADINGS = {"peak memory": "peak\nmemory", "forward": "for-\nward", "backward": "back-\nward"}


def terminal_view(comparison: Comparison, page: Path) -> Group:
    """Results and costs in two tables, so that long names fit, unfinished runs, findings, definitions, and the page."""
    parts = []
    for rows, name in zip(comparison.settings(), comparison.setting_names(), strict=True):
        table = tables.results_table(rows, comparison)
        results = table.header.index("seeds") + 1
        learners = Table(table.header, table.rows[: len(rows)])
        parts.append(rich_table(table, name, range(results)))
        parts.append(rich_table(learners, "cost", [0, *range(results, len(table.header))]))
        if (anytime := tables.metrics_table(tables.ANYTIME_METRICS, rows, comparison)).rows:
            parts.append(rich_table(anytime, "anytime accuracy"))
    parts += [rich_table(table, title) for title, table in tables.trend_tables(comparison).items()]
    if comparison.unfinished:
        parts.append(rich_table(tables.unfinished_table(comparison), "not finished"))
    said = [*tables.prefix_notes(comparison), *sentences(comparison)]
    words = [Text(escape(sentence)) for sentence in said]
    notes = [Text(escape(note), style="dim") for note in tables.result_notes(comparison)] if comparison.rows else []
    return Group(*(part for table in parts for part in (table, "")), *words, *notes, Text(f"Page: {escape(page)}"))


def rich_table(table: Table, title: str, columns: Collection[int] | None = None) -> RichTable:
    """A table with all columns, or some. Lines without a name belong to the line above and are dim."""
    columns, numeric = range(len(table.header)) if columns is None else columns, table.numeric
    view = compact_table(title)
    for i in columns:
        heading = HEADINGS.get(table.header[i]) or escape(table.header[i])
        justify = "right" if i in numeric else "left"
        view.add_column(Text(heading), justify=justify, no_wrap=i in numeric, overflow="fold")
    for row in table.rows:
        cells = [row[i] for i in columns]
        bold = ["bold" if isinstance(cell, Number) and cell.is_best else "" for cell in cells]
        texts = [Text(escape(cell).replace(" ± ", "±"), style) for cell, style in zip(cells, bold, strict=True)]
        view.add_row(*texts, style="" if row[0] else "dim")
    return view
