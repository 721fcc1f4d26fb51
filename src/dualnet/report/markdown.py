"""The report in Markdown: its tables, without the plots."""

from __future__ import annotations

import re

from .rows import Comparison
from .stability import stability_table, was_measured
from .tables import Cell, Table, environment_table, notes, options_table, results_table, runs_table, unfinished_table


def markdown_page(comparison: Comparison) -> str:
    """The tables of the report in Markdown."""
    parts = ["# Report"]
    if comparison.rows:
        parts.append(markdown_table(results_table(comparison)))
        parts.append("\n".join(f"- {markdown_text(note)}" for note in notes(comparison)))
    if comparison.unfinished:
        parts += ["## Not finished", markdown_table(unfinished_table(comparison))]
    if comparison.rows:
        parts += _markdown_appendix(comparison)
    return "\n\n".join(parts) + "\n"


def _markdown_appendix(comparison: Comparison) -> list[str]:
    measured = [row for row in comparison.rows if was_measured(row)]
    tables = {
        **({"Stability over the stream": stability_table(measured, comparison)} if measured else {}),
        "Options that differ": options_table(comparison),
        "Environment": environment_table(comparison),
        "Each run": runs_table(comparison),
    }
    return [part for title, table in tables.items() if table.rows for part in (f"## {title}", markdown_table(table))]


def markdown_table(table: Table) -> str:
    """The table in Markdown, with a mark for right-set columns."""
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
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*`\[\]])", r"\\\1", text)
