"""The report in Markdown: the tables without the plots."""

import re
from collections.abc import Iterable

from dualnet.text import printable

from . import tables
from .classes import class_tables
from .data_set import data_set_text
from .findings import findings
from .rows import Comparison
from .tables import Best, TextTable


def markdown_page(comparison: Comparison) -> str:
    """The whole report."""
    parts = ["# Report"]
    if comparison.rows:
        parts.append(markdown_list(findings(comparison)))
        for rows in comparison.settings():
            parts += [f"## {markdown_text(rows[0].setting_name)}", markdown_text(data_set_text(rows[0].runs[0]))]
            parts += map(markdown_table, [tables.results_table(rows, comparison), *class_tables(rows)])
        parts.append(markdown_list(tables.result_notes(comparison)))
    titled = {
        "Not finished": tables.unfinished_table(comparison),
        **tables.trend_tables(comparison),
        "Stability over the stream": tables.stability_table(comparison.rows, comparison),
        **tables.appendix_tables(comparison),
    }
    for title, table in titled.items():
        parts += [f"## {title}", markdown_table(table)] if table.rows else []
    return "\n\n".join(parts) + "\n"


def markdown_table(table: TextTable) -> str:
    """The table, with numeric columns aligned to the right."""
    marks = ["---:" if i in table.numeric else "---" for i in range(len(table.header))]
    lines = [[markdown_text(title) for title in table.header], marks]
    for line in table.rows:
        lines.append([f"**{markdown_text(cell)}**" if isinstance(cell, Best) else markdown_text(cell) for cell in line])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_text(sentence)}" for sentence in sentences)


def markdown_text(text: str) -> str:
    r"""The text with Markdown and HTML syntax escaped.

    >>> markdown_text("a|b <i> *c*")
    'a\\|b &lt;i> \\*c\\*'
    """
    text = printable(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*`\[\]])", r"\\\1", text)
