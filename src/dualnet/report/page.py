"""The report as one page of HTML that needs nothing else: style, tables and plots are inside."""

from collections.abc import Iterator, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from string import Template

import numpy as np

from . import plots
from .elements import accuracy_legend, bullets, card, grid, html_table, legend, section, symbol_of, task_legend
from .heat_map import heat_map, shared_limits
from .rows import Comparison, ReportRow, Shown, count_text, was_measured
from .style import FEW_TASKS, MANY_TASKS, Draw, page_svg
from .tables import appendix_tables, result_notes, results_table, stability_table, trend_tables, unfinished_table
from .trend import Trend, trends

PLOT_SIZE = (4.8, 3.1)  # inches: small, so that the text is still readable when a phone shrinks it
LOW_PLOT_SIZE = (4.8, 2.3)
STABILITY_NOTES = (
    "Accuracy on some test images of the tasks before the one that is being learned, mean over seeds.",
    "A ring marks the lowest point of a line.",
    "min-ACC: mean over all tasks but the last of their lowest accuracy. WC-ACC: the same with the last task.",
)


def html_page(comparison: Comparison) -> str:
    """The whole page."""
    here, title = files(__name__.rpartition(".")[0]), escape(_title(comparison))
    page, style = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.css"))
    return Template(page).substitute(title=title, style=style, sections="".join(_sections(comparison)))


def _sections(comparison: Comparison) -> Iterator[str]:
    yield f"<h1>{escape(_title(comparison))}</h1>\n<p class='lead'>{escape(_lead(comparison))}</p>\n"
    if comparison.rows:
        yield section("Results", html_table(results_table(comparison)) + bullets(result_notes(comparison)))
    if comparison.unfinished:
        yield section("Not finished", html_table(unfinished_table(comparison)))
    if found := trends(comparison):  # across settings: a labelled share is one
        shown, tables = grid(_trend(trend, comparison) for trend in found), trend_tables(comparison).values()
        yield section("Accuracy against an option", shown + "".join(map(html_table, tables)))
    for rows in comparison.settings():
        yield from _setting_sections(rows, comparison)
    for title, table in appendix_tables(comparison).items():
        yield section(title, html_table(table))


def _setting_sections(rows: Sequence[ReportRow], comparison: Comparison) -> Iterator[str]:
    """The plots of rows that may be compared."""
    place = f" · {rows[0].setting_name}" if len(comparison.settings()) > 1 else ""
    yield section(f"Accuracy and forgetting{place}", legend(rows) + grid(_curves(rows, comparison)))
    if rows[0].num_tasks > 1:
        yield section(f"Accuracy matrix{place}", _heat_maps(rows))
    if measured := [row for row in rows if was_measured(row)]:
        yield section(f"Stability over the stream{place}", _stability(measured, comparison))
    if with_memory := [row for row in rows if any(run.log.stored for run in row.runs)]:
        yield section(f"Composition of the memory{place}", grid(map(_composition, with_memory)))
    if names := plots.loss_names(rows):
        yield section(f"Losses over the stream{place}", legend(rows) + grid(_losses(rows, names)))


def _curves(rows: Sequence[ReportRow], comparison: Comparison) -> Iterator[str]:
    hint = "mean over the tasks learned so far; band: spread over seeds"
    yield _plot("Accuracy over the stream", hint, partial(plots.accuracy_plot, rows, comparison), f"of {_labels(rows)}")
    if rows := [row for row in rows if plots.has_forgetting(row)]:
        shape = "band" if rows[0].num_tasks > MANY_TASKS else "whiskers"
        hint = f"definition: {comparison.fm}; {shape}: spread over seeds"
        draw = partial(plots.forgetting_plot, rows, comparison)
        yield _plot("Forgetting of each task", hint, draw, f"of {_labels(rows)}")


def _plot(title: str, hint: str, draw: Draw, of: str, above: str = "", symbol: str = "", low: bool = False) -> str:
    """A card with a plot; screen readers are told its title and of what it is."""
    plot = page_svg(draw, f"{title} {of}", LOW_PLOT_SIZE if low else PLOT_SIZE)
    return card(title, hint, above + plot, symbol)


def _trend(trend: Trend, comparison: Comparison) -> str:
    draw, hint = partial(plots.trend_plot, trend, comparison), "mean over seeds; whiskers: their spread"
    return _plot(trend.title, hint, draw, f"of {_labels(trend.lines)}", legend(trend.lines))


def _heat_maps(rows: Sequence[ReportRow]) -> str:
    means = [np.mean(row.accuracies, axis=0) for row in rows]
    limits = shared_limits(means)
    maps = [heat_map(mean, limits, f"Accuracy matrix of {row.label}") for row, mean in zip(rows, means, strict=True)]
    cards = [card(row.label, "", drawn, symbol_of(row)) for row, drawn in zip(rows, maps, strict=True)]
    kind = "wide" if rows[0].num_tasks > FEW_TASKS else "small"
    return f"<p class='hint'>Test accuracy in percent, mean over seeds.</p>{accuracy_legend(limits)}{grid(cards, kind)}"


def _stability(rows: Sequence[ReportRow], comparison: Comparison) -> str:
    limits = shared_limits([plots.mean_measured(row)[1] for row in rows])
    cards = [_stability_of_tasks(row, limits) for row in rows]
    if len(rows) > 1:
        draw, hint = partial(plots.over_rows_plot, rows, limits), "mean accuracy on the earlier tasks"
        cards.insert(0, _plot("All experiments", hint, draw, f"on earlier tasks: {_labels(rows)}", legend(rows)))
    notes = [*STABILITY_NOTES, *(["Thin lines: a task ends."] if plots.task_ends(rows) else [])]
    return html_table(stability_table(rows, comparison)) + bullets(notes) + grid(cards)


def _stability_of_tasks(row: ReportRow, limits: tuple[float, float]) -> str:
    if row.num_tasks > MANY_TASKS:
        draw, colours = partial(plots.task_map, row, limits), accuracy_legend(limits)
    else:
        draw = partial(plots.over_tasks_plot, row, limits)
        colours = task_legend(row.num_tasks, shown=row.num_tasks - 1)
    return _plot(row.label, "accuracy on each earlier task", draw, "on each earlier task", colours, symbol_of(row))


def _composition(row: ReportRow) -> str:
    word = "task" if plots.is_by_task(row) else "class"
    colours = task_legend(plots.mean_stored(row)[1].shape[1], word=word)
    hint, draw = f"stored examples of each {word}, mean over seeds", partial(plots.composition_plot, row)
    return _plot(row.label, hint, draw, f"stored examples of each {word}", colours, symbol_of(row), low=True)


def _losses(rows: Sequence[ReportRow], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        having = [row for row in rows if name in plots.loss_names([row])]
        hint = "mean over seeds; thin lines: a task ends" if plots.task_ends(having) else "mean over seeds"
        draw = partial(plots.loss_plot, having, name)
        yield _plot(name.replace("_", " "), hint, draw, f"loss of {_labels(having)}", low=True)


def _labels(shown: Sequence[Shown]) -> str:
    return ", ".join(one.label for one in shown)


def _title(comparison: Comparison) -> str:
    names = dict.fromkeys(row.options.get("benchmark.name", "") for row in comparison.rows)
    return f"Continual learning on {', '.join(names)}" if any(names) else "Continual learning"


def _lead(comparison: Comparison) -> str:
    settings = comparison.settings()
    runs = sum(len(row.runs) for row in comparison.rows)
    parts = [count_text(runs, "finished run"), count_text(len(comparison.rows), "experiment")]
    parts += [count_text(settings[0][0].num_tasks, "task")] if len(settings) == 1 else []
    parts += [f"{len(comparison.unfinished)} not finished"] if comparison.unfinished else []
    return " · ".join(parts)
