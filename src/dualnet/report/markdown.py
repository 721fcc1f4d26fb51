"""The report in Markdown: its tables, without the plots."""

from __future__ import annotations

import re

from dualnet.text import printable

from .rows import Comparison
from .stability import stability_table, was_measured
from .tables import Cell, TextTable, appendix_tables, result_notes, results_table, unfinished_table


def markdown_page(comparison: Comparison) -> str:
    """The tables of the report in Markdown."""
    parts = ["# Report"]
    if comparison.rows:
        parts.append(markdown_table(results_table(comparison)))
        parts.append("\n".join(f"- {markdown_text(note)}" for note in result_notes(comparison)))
    for title, table in _tables(comparison).items():
        parts += [f"## {title}", markdown_table(table)]
    return "\n\n".join(parts) + "\n"


def _tables(comparison: Comparison) -> dict[str, TextTable]:
    measured = [row for row in comparison.rows if was_measured(row)]
    return {
        **({"Not finished": unfinished_table(comparison)} if comparison.unfinished else {}),
        **({"Stability over the stream": stability_table(measured, comparison)} if measured else {}),
        **appendix_tables(comparison),
    }


def markdown_table(table: TextTable) -> str:
    """The table in Markdown; numeric columns are aligned to the right."""
    marks = ["---:" if i in table.numeric else "---" for i in range(len(table.header))]
    lines = [[markdown_text(title) for title in table.header], marks]
    lines += [[_markdown_cell(cell) for cell in line] for line in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(cell: Cell) -> str:
    return f"**{markdown_text(cell.text)}**" if cell.best else markdown_text(cell.text)


def markdown_text(text: str) -> str:
    r"""Text that stays text in a Markdown table.

    >>> markdown_text("a|b <i> *c*")
    'a\\|b &lt;i> \\*c\\*'
    """
    text = printable(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*`\[\]])", r"\\\1", text)
