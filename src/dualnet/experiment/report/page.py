"""The report as one page of HTML that needs nothing else: style, tables and plots are inside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

import numpy as np

from .heat_map import MANY_TASKS, heat_map, scale_bar, shared_limits
from .plots import (
    GLYPHS,
    PALETTE,
    accuracy_plot,
    forgetting_plot,
    has_forgetting,
    has_loss,
    loss_names,
    loss_plot,
    mark,
    page_svg,
    task_ends,
)
from .rows import Comparison, Row
from .tables import (
    Cell,
    Table,
    environment_table,
    notes,
    options_table,
    results_table,
    runs_table,
    unfinished_table,
)

PLOT_SIZE = (4.8, 3.1)  # inches: small, so that the text is still readable when a phone shrinks it
LOSS_SIZE = (4.8, 2.3)


def html_page(comparison: Comparison) -> str:
    """The whole page."""
    style = files(__name__.rpartition(".")[0]).joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        # Nothing may be loaded and no script may run, whatever a run folder holds.
        """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">\n"""
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(_title(comparison))}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"{''.join(_sections(comparison))}</main>\n</body>\n</html>\n"
    )


def _sections(comparison: Comparison) -> Iterator[str]:
    yield f"<h1>{escape(_title(comparison))}</h1>\n<p class='lead'>{escape(_lead(comparison))}</p>\n"
    if comparison.rows:
        yield _section("Results", _html_table(results_table(comparison)) + _notes(comparison))
    if comparison.unfinished:
        yield _section("Not finished", _html_table(unfinished_table(comparison)))
    for rows in comparison.settings():
        yield from _setting_sections(rows, comparison)
    if comparison.rows:
        yield from _appendix(comparison)


def _setting_sections(rows: Sequence[Row], comparison: Comparison) -> Iterator[str]:
    """The plots of rows that may be compared."""
    place = f" · {rows[0].setting_name}" if len(comparison.settings()) > 1 else ""
    yield _section(f"Accuracy and forgetting{place}", _legend(rows) + _cards(_curves(rows, comparison)))
    if rows[0].num_tasks > 1:
        yield _section(f"Accuracy matrix{place}", _heat_maps(rows))
    names = loss_names(rows)
    if names:
        yield _section(f"Losses over the stream{place}", _legend(rows) + _cards(_losses(rows, names)))


def _curves(rows: Sequence[Row], comparison: Comparison) -> Iterator[str]:
    plot = page_svg(accuracy_plot(rows, comparison), f"Accuracy after each task: {_labels(rows)}", PLOT_SIZE)
    yield _card("Accuracy over the stream", "mean over the tasks learned so far; band: spread over seeds", plot)
    rows = [row for row in rows if has_forgetting(row)]
    if rows:
        plot = page_svg(forgetting_plot(rows, comparison), f"Forgetting of each task: {_labels(rows)}", PLOT_SIZE)
        yield _card("Forgetting of each task", f"definition: {comparison.fm}; whiskers: spread over seeds", plot)


def _losses(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        having = [row for row in rows if has_loss(row, name)]
        plot = page_svg(loss_plot(having, name), f"Loss {name} over the steps: {_labels(having)}", LOSS_SIZE)
        hint = "mean over seeds; thin lines: a task ends" if task_ends(having) else "mean over seeds"
        yield _card(name.replace("_", " "), hint, plot)


def _heat_maps(rows: Sequence[Row]) -> str:
    means = [np.mean(row.accuracies, axis=0) for row in rows]
    limits = shared_limits(means)
    cards = [
        _card(row.label, "", heat_map(mean, limits, f"Accuracy matrix of {row.label}"), _mark(row))
        for row, mean in zip(rows, means, strict=True)
    ]
    kind = "wide" if rows[0].num_tasks > MANY_TASKS else "small"
    return f"<p class='hint'>Test accuracy in percent, mean over seeds.</p>{scale_bar(limits)}{_cards(cards, kind)}"


def _appendix(comparison: Comparison) -> Iterator[str]:
    options = options_table(comparison)
    if options.rows:
        yield _section("Options that differ", _html_table(options))
    yield _section("Environment", _html_table(environment_table(comparison)))
    yield _section("Each run", _html_table(runs_table(comparison)))


def _html_table(table: Table) -> str:
    """A table that scrolls in its own box; its first column stays in sight."""
    head = _line([Cell(title) for title in table.header], table, "th scope='col'")
    body = "".join(_line(line, table, "td") for line in table.rows)
    return f"<div class='scroll' tabindex='0'><table><thead>{head}</thead><tbody>{body}</tbody></table></div>\n"


def _line(cells: Sequence[Cell], table: Table, tag: str) -> str:
    return f"<tr>{''.join(_html_cell(i, cell, table, tag) for i, cell in enumerate(cells))}</tr>"


def _html_cell(column: int, cell: Cell, table: Table, tag: str) -> str:
    if column == 0 and tag == "td":
        tag = "th scope='row'"
    text = f"<strong>{escape(cell.text)}</strong>" if cell.best else _breakable(escape(cell.text))
    if column in table.numeric:
        return f"<{tag} class='number'>{text}</{tag[:2]}>"
    return f"<{tag}><div>{text}</div></{tag[:2]}>"


def _breakable(text: str) -> str:
    """Lets a long path or option break after a slash or a dot that stands between letters."""
    return re.sub(r"(?<=\w)([/.])(?=[a-zA-Z_])", r"\1<wbr>", text)


def _notes(comparison: Comparison) -> str:
    return f"<ul class='notes'>{''.join(f'<li>{escape(note)}</li>' for note in notes(comparison))}</ul>\n"


def _legend(rows: Sequence[Row]) -> str:
    return f"<p class='legend'>{''.join(f'<span>{_mark(row)} {escape(row.label)}</span>' for row in rows)}</p>\n"


def _mark(row: Row) -> str:
    return f"<i style='color: var(--row-{row.index % len(PALETTE)})'>{GLYPHS[mark(row)]}</i>"


def _labels(rows: Sequence[Row]) -> str:
    return ", ".join(row.label for row in rows)


def _cards(cards: Iterator[str] | Sequence[str], kind: str = "pair") -> str:
    return f"<div class='cards {kind}'>{''.join(cards)}</div>\n"


def _card(title: str, hint: str, body: str, symbol: str = "") -> str:
    below = f" <small>{escape(hint)}</small>" if hint else ""
    return f"<figure><figcaption><b>{symbol} {escape(title)}</b>{below}</figcaption>{body}</figure>"


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}</section>\n"


def _title(comparison: Comparison) -> str:
    names = list(dict.fromkeys(row.options.get("benchmark.name", "") for row in comparison.rows))
    return f"Continual learning on {', '.join(names)}" if any(names) else "Continual learning"


def _lead(comparison: Comparison) -> str:
    runs = sum(len(row.runs) for row in comparison.rows)
    parts = [_count(runs, "finished run"), _count(len(comparison.rows), "experiment")]
    parts += [
        _count(rows[0].num_tasks, "task") for rows in comparison.settings()[:1] if len(comparison.settings()) == 1
    ]
    parts += [f"{len(comparison.unfinished)} not finished"] if comparison.unfinished else []
    return " · ".join(parts)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
