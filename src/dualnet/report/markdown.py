"""The report as Markdown. All text is escaped."""

import re
from collections.abc import Iterable

from dualnet.report import tables
from dualnet.report.cells import Cell, Number, Table
from dualnet.report.class_tables import class_tables
from dualnet.report.findings import sentences
from dualnet.report.rows import Comparison
from dualnet.report.stream_facts import data_set_text
from dualnet.text import escape


def markdown_page(comparison: Comparison) -> str:
    """The whole report, without the plots."""
    parts = ["# Report"]
    if comparison.rows:
        parts.append(markdown_list([*tables.prefix_notes(comparison), *sentences(comparison)]))
        for rows, name in zip(comparison.settings(), comparison.setting_names(), strict=True):
            parts += [f"## {markdown_text(name)}", markdown_text(data_set_text(rows[0].runs[0]))]
            measured = [
                tables.results_table(rows, comparison),
                tables.metrics_table(tables.ANYTIME_METRICS, rows, comparison),
            ]
            parts += [markdown_table(table) for table in [*measured, *class_tables(rows)] if table.rows]
        parts.append(markdown_list(tables.result_notes(comparison)))
    titled = {
        "Not finished": tables.unfinished_table(comparison),
        **tables.trend_tables(comparison),
        "Stability over the stream": tables.metrics_table(tables.STABILITY_METRICS, comparison.rows, comparison),
        **tables.appendix_tables(comparison),
    }
    for title, table in titled.items():
        parts += [f"## {title}", markdown_table(table)] if table.rows else []
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """The table, with numeric columns aligned to the right."""
    marks = ["---:" if i in table.numeric else "---" for i in range(len(table.header))]
    lines = [[markdown_text(title) for title in table.header], marks]
    lines += [[markdown_cell(cell) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_cell(cell: Cell) -> str:
    text = markdown_text(str(cell))
    return f"**{text}**" if isinstance(cell, Number) and cell.is_best else text


def markdown_list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_text(sentence)}" for sentence in sentences)


def markdown_text(text: str) -> str:
    r"""The text with Markdown and HTML syntax escaped.

    >>> markdown_text("a|b <i> *c*")
    'a\\|b &lt;i> \\*c\\*'
    """
    text = escape(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*`\[\]])", r"\\\1", text)
