"""The report as a single self-contained HTML page."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template

import numpy as np

from dualnet.report import classes, plots
from dualnet.report.data_set import data_set_text, is_task_aware
from dualnet.report.elements import (
    accuracy_legend,
    bullets,
    card,
    fold,
    grid,
    html_table,
    legend,
    remark,
    section,
    symbol,
    task_legend,
    thumbnails,
)
from dualnet.report.findings import findings
from dualnet.report.heat_map import accuracy_map, confusion_map, shared_limits
from dualnet.report.rows import DASH, Comparison, ReportRow, Series, has_stability, top_rows
from dualnet.report.style import FEW_TASKS, MANY_TASKS, PLOT_WIDTH, Draw, Limits, page_svg
from dualnet.report.tables import (
    anytime_table,
    appendix_tables,
    result_notes,
    results_table,
    stability_table,
    trend_table,
    unfinished_table,
)
from dualnet.report.trend import Trend, trends
from dualnet.text import pluralise

PLOT_SIZE, LOW_PLOT_SIZE = (PLOT_WIDTH, 2.8), (PLOT_WIDTH, 2.1)  # inches
MAX_LINES, MAX_MATRICES = 7, 6  # rows of a setting in a plot, and matrices that are not collapsed
MAX_MATRIX_CLASSES = 20  # with more, the most confused pairs are listed instead of a matrix
COLLAPSED = ("Other options that differ", "Environment", "Each run")
ANYTIME_NOTE = "A_AUC is the mean of the accuracies on all classes seen so far, which the plot shows."
STABILITY_NOTES = (
    "Accuracy on a sample of the test images of earlier tasks while a later task is learned, mean over seeds.",
    "A ring marks the lowest point of a line.",
    "min-ACC: mean over all tasks but the last of their lowest accuracy. WC-ACC: the same with the last task.",
)


def html_page(comparison: Comparison) -> str:
    parts = (Path(__file__).with_suffix(suffix) for suffix in (".html", ".css", ".js"))
    page, style, script = (part.read_text(encoding="utf-8") for part in parts)
    digest = f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"
    names = dict.fromkeys(row.data_set for row in comparison.rows)
    title = f"Continual learning on {', '.join(names)}" if any(names) else "Continual learning"
    runs = sum(len(row.runs) for row in comparison.rows)
    lead = [pluralise(runs, "finished run"), pluralise(len(comparison.rows), "experiment")]
    lead += [f"{len(comparison.unfinished)} not finished"] if comparison.unfinished else []
    texts = {"title": escape(title), "lead": " · ".join(lead), "sections": "".join(_sections(comparison))}
    return Template(page).substitute(texts, style=style, script=script, hash=digest)


def _sections(comparison: Comparison) -> Iterator[str]:
    yield bullets(findings(comparison), "findings")
    if comparison.rows:
        tables = "".join(_results(rows, comparison) for rows in comparison.settings())
        yield section("Results", tables + bullets(result_notes(comparison)))
    if comparison.unfinished:
        yield section("Not finished", html_table(unfinished_table(comparison)))
    if found := trends(comparison):  # a trend may span settings, for example different shares of labels
        yield section("Accuracy against an option", "".join(_trend(trend, comparison) for trend in found))
    for rows in comparison.settings():
        yield from _setting_sections(rows, comparison)
    for title, table in appendix_tables(comparison).items():
        yield fold(title, html_table(table)) if title in COLLAPSED else section(title, html_table(table))


def _results(rows: Sequence[ReportRow], comparison: Comparison) -> str:
    several = len(comparison.settings()) > 1
    above = f"<h3>{escape(rows[0].setting_name)}</h3>\n" if several else ""
    data_set = data_set_text(rows[0].runs[0], rows[0].data_set)
    protocol = "" if several else f" · protocol {rows[0].options.get('protocol', DASH)}"
    return above + remark(data_set + protocol) + html_table(results_table(rows, comparison))


def _setting_sections(rows: Sequence[ReportRow], comparison: Comparison) -> Iterator[str]:
    """The plots of one setting."""
    place = f" · {rows[0].setting_name}" if len(comparison.settings()) > 1 else ""
    shown = top_rows(rows, MAX_LINES)
    limited = remark(f"Only the {MAX_LINES} experiments with the highest ACC.") if len(shown) < len(rows) else ""
    yield section(f"Accuracy and forgetting{place}", limited + legend(shown) + grid(_curves(shown, comparison)))
    if known := classes.rows_with_classes(rows):
        yield section(f"Classes after the last task{place}", "".join(_classes(known)))
    if rows[0].num_tasks > 1:
        yield section(f"Accuracy matrix{place}", _heat_maps(rows))
    if (anytime := anytime_table(rows, comparison)).rows:
        yield section(f"Anytime accuracy{place}", html_table(anytime) + bullets([ANYTIME_NOTE]) + _anytime(rows))
    if stable := [row for row in rows if has_stability(row)]:
        yield section(f"Stability over the stream{place}", _stability(stable, comparison))
    if with_memory := [row for row in rows if any(run.log.stored for run in row.runs)]:
        yield section(f"Composition of the memory{place}", grid(map(_composition, with_memory)))
    if names := plots.loss_names(rows):
        yield section(f"Losses over the stream{place}", legend(rows) + grid(_losses(rows, names)))


def _curves(rows: Sequence[ReportRow], comparison: Comparison) -> Iterator[str]:
    hint = "mean over the tasks learned so far; band: spread over seeds"
    yield _plot("Accuracy over the stream", hint, partial(plots.accuracy_plot, rows, comparison), f"of {_labels(rows)}")
    if rows := [row for row in rows if plots.has_forgetting(row)]:
        shape = "band" if rows[0].num_tasks > FEW_TASKS else "error bars"
        hint = f"definition of FM: {comparison.fm}; {shape}: spread over seeds"
        draw = partial(plots.forgetting_plot, rows, comparison)
        yield _plot("Forgetting of each task", hint, draw, f"of {_labels(rows)}")


def _plot(title: str, hint: str, draw: Draw, of: str, above: str = "", icon: str = "", low: bool = False) -> str:
    """A card with a plot. Its description for screen readers is the title followed by `of`."""
    plot = page_svg(draw, f"{title} {of}", LOW_PLOT_SIZE if low else PLOT_SIZE)
    return card(title, hint, above + plot, icon)


def _trend(trend: Trend, comparison: Comparison) -> str:
    """A plot with its table."""
    draw, hint = partial(plots.trend_plot, trend, comparison), "mean over seeds; error bars: spread over seeds"
    plot = _plot(trend.title, hint, draw, f"of {_labels(trend.lines)}", legend(trend.lines))
    return grid([plot, html_table(trend_table(trend, comparison))], "trend")


def _heat_maps(rows: Sequence[ReportRow]) -> str:
    """The accuracy matrices; those of all but the best rows are collapsed. Offline has none: it has only a last row."""
    rows = [row for row in rows if plots.has_forgetting(row)] or rows
    means = {row.index: np.mean(row.accuracies, axis=0) for row in rows}
    limits = shared_limits(list(means.values()))

    def cards(shown: Sequence[ReportRow]) -> str:
        maps = [accuracy_map(means[row.index], limits, f"Accuracy matrix of {row.label}") for row in shown]
        drawn = [card(row.label, "", heat_map, symbol(row)) for row, heat_map in zip(shown, maps, strict=True)]
        return grid(drawn, "wide" if FEW_TASKS < rows[0].num_tasks <= MANY_TASKS else "pair")

    first = top_rows(rows, MAX_MATRICES)
    rest = [row for row in rows if row.index not in {best.index for best in first}]
    above = remark("Test accuracy in percent, mean over seeds.") + accuracy_legend(limits)
    return above + cards(first) + (fold(f"{len(rest)} more", cards(rest)) if rest else "")


def _classes(rows: Sequence[ReportRow]) -> Iterator[str]:
    """Results by class of rows by decreasing ACC; confused pairs and mistakes are those of the best row."""
    best, names = rows[0], classes.names_of(rows[0].runs[0])
    candidates = "the classes of the image's task, which is given" if is_task_aware(best.runs[0]) else "all classes"
    yield remark(f"On all test images. Predictions are among {candidates}.")
    if (tasks := classes.tasks_table(best)).rows:
        yield fold("Classes of each task", html_table(tasks))
    shown, whole = classes.weakest_classes(rows), html_table(classes.class_table(rows))
    if len(shown) < len(names):
        yield remark(f"The {len(shown)} of {len(names):,} classes with the lowest accuracy.")
        yield html_table(classes.class_table(rows, shown)) + fold("All classes", whole)
    else:
        yield whole
    if len(names) <= MAX_MATRIX_CLASSES:
        yield "<h3>Confusion matrix</h3>" + remark("Predictions in percent of the images of a class, over all seeds.")
        yield grid(map(_confusions, rows[:MAX_MATRICES]), "pair" if len(names) <= FEW_TASKS else "wide")
    elif (pairs := classes.confused_pairs_table(best)).rows:
        yield f"<h3>Most confused classes: {escape(best.label)}</h3>{html_table(pairs)}"
    if mistakes := next((one.mistakes for one in classes.class_results(best) if one.mistakes), ()):
        yield f"<h3>Most confident mistakes: {escape(best.label)}</h3>"
        yield remark("The wrong predictions with the highest probability, of one seed; at most two of the same kind.")
        yield thumbnails(mistakes, names)


def _confusions(row: ReportRow) -> str:
    matrix, names = classes.confusion_matrix(row), classes.names_of(row.runs[0])
    return card(row.label, "", confusion_map(matrix, names, f"Confusion matrix of {row.label}"), symbol(row))


def _anytime(rows: Sequence[ReportRow]) -> str:
    shown = top_rows([row for row in rows if any(run.log.anytime for run in row.runs)], MAX_LINES)
    hint = "mean over seeds; thin lines: ends of tasks" if plots.task_ends(shown) else "mean over seeds"
    draw = partial(plots.anytime_plot, shown)
    return grid([_plot("Accuracy on the classes seen", hint, draw, f"of {_labels(shown)}", legend(shown))])


def _stability(rows: Sequence[ReportRow], comparison: Comparison) -> str:
    limits = shared_limits([plots.mean_stability(row)[1] for row in rows])
    cards = [_stability_of_tasks(row, limits) for row in rows]
    if len(rows) > 1:
        draw, hint = partial(plots.stability_of_rows_plot, rows, limits), "mean accuracy on earlier tasks"
        cards.insert(0, _plot("All experiments", hint, draw, f"on earlier tasks: {_labels(rows)}", legend(rows)))
    notes = [*STABILITY_NOTES, *(["Thin vertical lines mark the ends of tasks."] if plots.task_ends(rows) else [])]
    return html_table(stability_table(rows, comparison)) + bullets(notes) + grid(cards)


def _stability_of_tasks(row: ReportRow, limits: Limits) -> str:
    if row.num_tasks > MANY_TASKS:
        draw, colours = partial(plots.stability_map, row, limits), accuracy_legend(limits)
    else:
        draw = partial(plots.stability_of_tasks_plot, row, limits)
        colours = task_legend(row.num_tasks, num_shown=row.num_tasks - 1)
    return _plot(row.label, "accuracy on each earlier task", draw, "on each earlier task", colours, symbol(row))


def _composition(row: ReportRow) -> str:
    word = "task" if plots.is_by_task(row) else "class"
    colours = task_legend(plots.mean_memory(row)[1].shape[1], word=word)
    hint, draw = f"stored examples of each {word}, mean over seeds", partial(plots.composition_plot, row)
    return _plot(row.label, hint, draw, f"stored examples of each {word}", colours, symbol(row), low=True)


def _losses(rows: Sequence[ReportRow], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        having = [row for row in rows if name in plots.loss_names([row])]
        hint = "mean over seeds; thin lines: ends of tasks" if plots.task_ends(having) else "mean over seeds"
        draw = partial(plots.loss_plot, having, name)
        yield _plot(name.replace("_", " "), hint, draw, f"loss of {_labels(having)}", low=True)


def _labels(series: Sequence[Series]) -> str:
    return ", ".join(one.label for one in series)
