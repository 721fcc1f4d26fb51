"""The report as one page of HTML that needs nothing else: style, tables and plots are inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

import numpy as np

from .composition import composition_plot, has_memory, is_by_task, mean_over_seeds
from .elements import bullets, card, grid, html_table, legend, section, symbol_of, task_legend
from .heat_map import MANY_TASKS, heat_map, scale_bar, shared_limits
from .look import page_svg
from .plots import accuracy_plot, forgetting_plot, has_forgetting, has_loss, loss_names, loss_plot, task_ends
from .rows import Comparison, Row
from .stability import accuracy_limits, over_rows_plot, over_tasks_plot, stability_table, was_measured
from .tables import environment_table, notes, options_table, results_table, runs_table, unfinished_table
from .trend import TRENDS, lines, trend_plot

PLOT_SIZE = (4.8, 3.1)  # inches: small, so that the text is still readable when a phone shrinks it
LOSS_SIZE = (4.8, 2.3)
STABILITY_NOTES = (
    "Accuracy on some test images of the tasks before the one that is being learned, mean over seeds.",
    "A ring marks the lowest point of a line. Thin lines: a task ends.",
    "min-ACC: mean over all tasks but the last of their lowest accuracy. WC-ACC: the same with the last task.",
)


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
        yield section("Results", html_table(results_table(comparison)) + bullets(notes(comparison)))
    if comparison.unfinished:
        yield section("Not finished", html_table(unfinished_table(comparison)))
    if trends := list(_trends(comparison)):
        yield section("Accuracy against an option", grid(trends))
    for rows in comparison.settings():
        yield from _setting_sections(rows, comparison)
    if comparison.rows:
        yield from _appendix(comparison)


def _setting_sections(rows: Sequence[Row], comparison: Comparison) -> Iterator[str]:
    """The plots of rows that may be compared."""
    place = f" · {rows[0].setting_name}" if len(comparison.settings()) > 1 else ""
    yield section(f"Accuracy and forgetting{place}", legend(rows) + grid(_curves(rows, comparison)))
    if rows[0].num_tasks > 1:
        yield section(f"Accuracy matrix{place}", _heat_maps(rows))
    if measured := [row for row in rows if was_measured(row)]:
        yield section(f"Stability over the stream{place}", _stability(measured, comparison))
    if remembering := [row for row in rows if has_memory(row)]:
        yield section(f"Composition of the memory{place}", _compositions(remembering))
    names = loss_names(rows)
    if names:
        yield section(f"Losses over the stream{place}", legend(rows) + grid(_losses(rows, names)))


def _curves(rows: Sequence[Row], comparison: Comparison) -> Iterator[str]:
    plot = page_svg(accuracy_plot(rows, comparison), f"Accuracy after each task: {_labels(rows)}", PLOT_SIZE)
    yield card("Accuracy over the stream", "mean over the tasks learned so far; band: spread over seeds", plot)
    rows = [row for row in rows if has_forgetting(row)]
    if rows:
        plot = page_svg(forgetting_plot(rows, comparison), f"Forgetting of each task: {_labels(rows)}", PLOT_SIZE)
        yield card("Forgetting of each task", f"definition: {comparison.fm}; whiskers: spread over seeds", plot)


def _trends(comparison: Comparison) -> Iterator[str]:
    """Across settings: a labelled share is one."""
    for trend in TRENDS:
        if drawn := lines(comparison.rows, trend):
            names = ", ".join(line.label for line in drawn)
            plot = page_svg(trend_plot(drawn, trend, comparison), f"{trend.title}: {names}", PLOT_SIZE)
            yield card(trend.title, "mean over seeds; whiskers: their spread", legend(drawn) + plot)


def _stability(rows: Sequence[Row], comparison: Comparison) -> str:
    parts, limits = [], accuracy_limits(rows)
    if len(rows) > 1:
        plot = page_svg(over_rows_plot(rows, limits), f"Mean accuracy on earlier tasks: {_labels(rows)}", PLOT_SIZE)
        parts.append(card("All experiments", "mean over the earlier tasks", legend(rows) + plot))
    for row in rows:
        colours = task_legend(row.num_tasks, shown=row.num_tasks - 1)
        plot = page_svg(over_tasks_plot(row, limits), f"Accuracy on each earlier task: {row.label}", PLOT_SIZE)
        parts.append(card(row.label, "each earlier task", colours + plot, symbol_of(row)))
    return html_table(stability_table(rows, comparison)) + bullets(STABILITY_NOTES) + grid(parts)


def _compositions(rows: Sequence[Row]) -> str:
    cards = []
    for row in rows:
        word = "task" if is_by_task(row) else "class"
        layers = task_legend(mean_over_seeds(row)[1].shape[1], word=word)
        plot = page_svg(composition_plot(row), f"Stored examples of each {word}: {row.label}", LOSS_SIZE)
        cards.append(card(row.label, f"stored examples of each {word}, mean over seeds", layers + plot, symbol_of(row)))
    return grid(cards)


def _losses(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        having = [row for row in rows if has_loss(row, name)]
        plot = page_svg(loss_plot(having, name), f"Loss {name} over the steps: {_labels(having)}", LOSS_SIZE)
        hint = "mean over seeds; thin lines: a task ends" if task_ends(having) else "mean over seeds"
        yield card(name.replace("_", " "), hint, plot)


def _heat_maps(rows: Sequence[Row]) -> str:
    means = [np.mean(row.accuracies, axis=0) for row in rows]
    limits = shared_limits(means)
    cards = [
        card(row.label, "", heat_map(mean, limits, f"Accuracy matrix of {row.label}"), symbol_of(row))
        for row, mean in zip(rows, means, strict=True)
    ]
    kind = "wide" if rows[0].num_tasks > MANY_TASKS else "small"
    return f"<p class='hint'>Test accuracy in percent, mean over seeds.</p>{scale_bar(limits)}{grid(cards, kind)}"


def _appendix(comparison: Comparison) -> Iterator[str]:
    options = options_table(comparison)
    if options.rows:
        yield section("Options that differ", html_table(options))
    yield section("Environment", html_table(environment_table(comparison)))
    yield section("Each run", html_table(runs_table(comparison)))


def _labels(rows: Sequence[Row]) -> str:
    return ", ".join(row.label for row in rows)


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
