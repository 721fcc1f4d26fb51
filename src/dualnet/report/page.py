"""The report as a single self-contained HTML page."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np

from dualnet.report import class_tables, plots, tables
from dualnet.report.findings import findings, sentences
from dualnet.report.heat_map import accuracy_map, confusion_map, shared_limits
from dualnet.report.html import elements, templates
from dualnet.report.legends import Icon, accuracy_legend, icon_of, legend, task_legend
from dualnet.report.rows import MAX_LINES, NUM_COLOURS, Comparison, ReportRow, Series, has_stability, top_rows
from dualnet.report.stream_facts import chance, data_set_text, is_task_aware
from dualnet.report.style import FEW_TASKS, MANY_TASKS, PLOT_WIDTH, Draw, Limits, page_svg
from dualnet.report.trend import Trend, trends
from dualnet.text import pluralise

PLOT_SIZE, LOW_PLOT_SIZE = (PLOT_WIDTH, 2.8), (PLOT_WIDTH, 2.1)  # inches
MAX_MATRICES = 6  # matrices that are not collapsed
MAX_MATRIX_CLASSES = 20  # with more, the most confused pairs are listed instead of a matrix
COLLAPSED = ("Other options that differ", "Environment", "Each run")
LEFT_OUT = f"Only the {MAX_LINES} experiments with the highest ACC"
ANYTIME_NOTE = "A_AUC is the mean of the accuracies on all classes seen so far, which the plot shows."
STABILITY_NOTES = (
    "Accuracy on a sample of the test images of earlier tasks while a later task is learned, mean over seeds.",
    "A ring marks the lowest point of a line.",
    "min-ACC: mean over all tasks but the last of their lowest accuracy. WC-ACC: the same with the last task.",
)
Html = str  # what the macros of elements.html return


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    parts: Sequence[Html]
    is_open: bool = True


def html_page(comparison: Comparison) -> str:
    style, script = (Path(__file__).with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".css", ".js"))
    names = [name for name in dict.fromkeys(row.data_set for row in comparison.rows) if name]
    runs = sum(len(row.runs) for row in comparison.rows)
    lead = [pluralise(runs, "finished run"), pluralise(len(comparison.rows), "experiment")]
    lead += [f"{len(comparison.unfinished)} not finished"] if comparison.unfinished else []
    return (
        templates()
        .get_template("page.html")
        .render(
            title=f"Continual learning on {', '.join(names)}" if names else "Continual learning",
            lead=[", ".join(lead), *_shared(comparison), *tables.prefix_notes(comparison)],
            verdicts=list(_verdicts(comparison)),
            sections=list(_sections(comparison)),
            is_large=comparison.is_large,
            style=style,
            script=script,
            digest=b64encode(sha256(script.encode()).digest()).decode(),
        )
    )


def _shared(comparison: Comparison) -> list[str]:
    """A line with what several settings have in common."""
    parts = comparison.shared_parts if len(comparison.settings()) > 1 else []
    return [f"Common to all: {', '.join(parts)}"] if parts else []


def _verdicts(comparison: Comparison) -> Iterator[Html]:
    """What was run in each setting, the experiment with the highest ACC, and whether its lead is significant."""
    for rows, name, result in zip(comparison.settings(), comparison.setting_names(), findings(comparison), strict=True):
        counts = sorted({len(row.runs) for row in rows})
        seeds = pluralise(counts[-1], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
        accuracy = tables.mean_cell(result.best.accs, comparison)
        what = f"{name}, {pluralise(len(rows), 'experiment')} of {seeds}"
        yield elements().verdict(
            what, icon_of(result.best), result.best.label, f"{accuracy} %", result.lead, len(rows) > 1
        )


def _sections(comparison: Comparison) -> Iterator[Section]:
    """Several settings are a section each, with sections inside. If there are many rows, they are collapsed."""
    settings, large = comparison.settings(), comparison.is_large
    several = len(settings) > 1
    for rows, name in zip(settings, comparison.setting_names(), strict=True):
        inner = [Section("Results", [*_results(rows, comparison)]), *_setting_sections(rows, comparison)]
        if several:
            yield Section(name, [elements().section(section) for section in inner], not large)
        else:
            yield from (replace(section, is_open=not large or section is inner[0]) for section in inner)
    if several:
        yield Section("Definitions", [elements().bullets(tables.result_notes(comparison))], not large)
    if comparison.unfinished:
        yield Section("Not finished", [elements().table(tables.unfinished_table(comparison))])
    if drawn := trends(comparison):  # a trend may span settings, for example different shares of labels
        yield Section("Accuracy against an option", [_trend(trend, comparison) for trend in drawn], not large)
    for title, table in tables.appendix_tables(comparison).items():
        yield Section(title, [elements().table(table)], not large and title not in COLLAPSED)


def _results(rows: Sequence[ReportRow], comparison: Comparison) -> Iterator[Html]:
    html = elements()
    yield html.remark(data_set_text(rows[0].runs[0]))
    yield html.table(tables.results_table(rows, comparison), ranked=len(rows) > 1)
    own = Comparison([*rows], [], comparison.spread, comparison.fm, None)
    notes = [] if len(rows) < len(comparison.rows) else tables.result_notes(comparison)
    yield html.bullets([*sentences(own), *notes])


def _setting_sections(rows: Sequence[ReportRow], comparison: Comparison) -> Iterator[Section]:
    """The plots of one setting."""
    html, drawn = elements(), top_rows(rows)
    limited = (
        [html.remark(LEFT_OUT + (", and Offline." if drawn[-1].is_offline else "."))] if len(drawn) < len(rows) else []
    )
    yield Section("Accuracy and forgetting", [*limited, legend(drawn), html.grid(_curves(drawn, comparison))])
    if known := class_tables.rows_with_classes(drawn):
        yield Section("Classes after the last task", [*_classes(known)])
    if rows[0].num_tasks > 1:
        yield Section("Accuracy matrix", [*_heat_maps(rows)])
    if (anytime := tables.metrics_table(tables.ANYTIME_METRICS, rows, comparison)).rows:
        yield Section("Anytime accuracy", [html.table(anytime), html.bullets([ANYTIME_NOTE]), _anytime(rows)])
    if stable := [row for row in rows if has_stability(row)]:
        yield Section("Stability over the stream", [*_stability(stable, comparison)])
    if with_memory := [row for row in drawn if any(run.log.stored for run in row.runs)]:
        yield Section("Composition of the memory", [html.grid(map(_composition, with_memory))])
    if names := plots.loss_names(drawn):
        yield Section("Losses over the stream", [*limited, legend(drawn), html.grid(_losses(drawn, names))])


def _curves(rows: Sequence[ReportRow], comparison: Comparison) -> Iterator[Html]:
    guessing = chance(rows[0].runs[0])
    hint = "mean over the tasks learned so far; band: spread over seeds"
    hint += "" if guessing is None else f"; chance: {guessing:.2f} %"
    yield _plot("Accuracy over the stream", hint, partial(plots.accuracy_plot, rows, comparison), f"of {_labels(rows)}")
    if rows := [row for row in rows if plots.has_forgetting(row)]:
        shape = "band" if rows[0].num_tasks > FEW_TASKS else "error bars"
        hint = f"definition of FM: {comparison.fm}; {shape}: spread over seeds"
        draw = partial(plots.forgetting_plot, rows, comparison)
        yield _plot("Forgetting of each task", hint, draw, f"of {_labels(rows)}")


def _plot(
    title: str, hint: str, draw: Draw, of: str, colours: Html = "", icon: Icon | None = None, low: bool = False
) -> Html:
    """A card with a plot. Its description for screen readers is the title followed by `of`."""
    plot = page_svg(draw, f"{title} {of}", LOW_PLOT_SIZE if low else PLOT_SIZE)
    return elements().card(title, hint, plot, icon, colours)


def _trend(trend: Trend, comparison: Comparison) -> Html:
    """Plots, each with as many lines as there are colours, and a table."""
    html, hint = elements(), "mean over seeds; error bars: spread over seeds"
    plots_of_lines = []
    for first in range(0, len(trend.lines), NUM_COLOURS):
        part = replace(trend, lines=trend.lines[first : first + NUM_COLOURS])
        draw = partial(plots.trend_plot, part, comparison)
        plots_of_lines.append(_plot(trend.title, hint, draw, f"of {_labels(part.lines)}", legend(part.lines)))
    table = html.table(tables.trend_table(trend, comparison))
    single = len(plots_of_lines) == 1
    return html.grid([*plots_of_lines, table], "trend") if single else html.grid(plots_of_lines) + table


def _heat_maps(rows: Sequence[ReportRow]) -> Iterator[Html]:
    """The accuracy matrices; those of all but the best rows are collapsed. Offline has none: it has only a last row."""
    rows = [row for row in rows if plots.has_forgetting(row)] or rows
    limits = shared_limits([np.mean(row.accuracies, axis=0) for row in rows])

    def draw(row: ReportRow) -> Html:
        heat_map = accuracy_map(np.mean(row.accuracies, axis=0), limits, f"Accuracy matrix of {row.label}")
        return elements().card(row.label, "", heat_map, icon_of(row))

    width = "wide" if FEW_TASKS < rows[0].num_tasks <= MANY_TASKS else "pair"
    first, rest = rows[:MAX_MATRICES], rows[MAX_MATRICES:]
    yield elements().remark("Test accuracy in percent, mean over seeds.")
    yield accuracy_legend(limits)
    yield elements().grid(map(draw, first), width)
    if rest:
        yield elements().fold(f"{len(rest)} more", elements().grid(map(draw, rest), width))


def _classes(rows: Sequence[ReportRow]) -> Iterator[Html]:
    """Results by class of rows by decreasing ACC; confused pairs and mistakes are those of the best row."""
    html, best, names = elements(), rows[0], class_tables.names_of(rows[0].runs[0])
    candidates = "the classes of the image's task, which is given" if is_task_aware(best.runs[0]) else "all classes"
    yield html.remark(f"On all test images. Predictions are among {candidates}.")
    if (tasks := class_tables.tasks_table(best)).rows:
        yield html.fold("Classes of each task", html.table(tasks))
    weakest, whole = class_tables.weakest_classes(rows), html.table(class_tables.class_table(rows))
    if len(weakest) < len(names):
        yield html.remark(f"The {len(weakest)} of {len(names):,} classes with the lowest accuracy.")
        yield html.table(class_tables.class_table(rows, weakest))
        yield html.fold("All classes", whole)
    else:
        yield whole
    if len(names) <= MAX_MATRIX_CLASSES:
        yield html.heading("Confusion matrix")
        yield html.remark("Predictions in percent of the images of a class, over all seeds.")
        first, rest = (rows[:MAX_MATRICES], ()) if len(names) <= FEW_TASKS else (rows[:1], rows[1:MAX_MATRICES])
        yield html.grid(map(_confusions, first), "pair" if len(names) <= FEW_TASKS else "wide")
        if rest:
            yield html.fold(f"{len(rest)} more", html.grid(map(_confusions, rest), "wide"))
    elif (pairs := class_tables.confused_pairs_table(best)).rows:
        yield html.heading(f"Most confused classes: {best.label}")
        yield html.table(pairs)
    if mistakes := next((seed.mistakes for seed in class_tables.predictions_of(best) if seed.mistakes), ()):
        yield html.heading(f"Most confident mistakes: {best.label}")
        yield html.remark(
            "The wrong predictions with the highest probability, of one seed; at most two of the same kind."
        )
        yield html.thumbnails(mistakes, names)


def _confusions(row: ReportRow) -> Html:
    matrix, names = class_tables.confusion_matrix(row), class_tables.names_of(row.runs[0])
    return elements().card(
        row.label, "", confusion_map(matrix, names, f"Confusion matrix of {row.label}"), icon_of(row)
    )


def _anytime(rows: Sequence[ReportRow]) -> Html:
    drawn = top_rows([row for row in rows if any(run.log.anytime for run in row.runs)])
    draw = partial(plots.anytime_plot, drawn)
    plot = _plot("Accuracy on the classes seen", _line_hint(drawn), draw, f"of {_labels(drawn)}", legend(drawn))
    return elements().grid([plot])


def _stability(rows: Sequence[ReportRow], comparison: Comparison) -> Iterator[Html]:
    drawn = top_rows(rows)
    limits = shared_limits([plots.mean_stability(row)[1] for row in drawn])
    cards = [_stability_of_tasks(row, limits) for row in drawn]
    if len(rows) > 1:
        draw, hint = partial(plots.stability_of_rows_plot, drawn, limits), "mean accuracy on earlier tasks"
        cards.insert(0, _plot("All experiments", hint, draw, f"on earlier tasks: {_labels(drawn)}", legend(drawn)))
    ends = ["Thin vertical lines mark the ends of tasks."] if plots.task_ends(rows) else []
    yield elements().table(tables.metrics_table(tables.STABILITY_METRICS, rows, comparison))
    yield elements().bullets([*STABILITY_NOTES, *ends])
    yield elements().grid(cards)


def _stability_of_tasks(row: ReportRow, limits: Limits) -> Html:
    if row.num_tasks > MANY_TASKS:
        draw, colours = partial(plots.stability_map, row, limits), accuracy_legend(limits)
    else:
        draw = partial(plots.stability_of_tasks_plot, row, limits)
        colours = task_legend(row.num_tasks, num_shown=row.num_tasks - 1)
    return _plot(row.label, "accuracy on each earlier task", draw, "on each earlier task", colours, icon_of(row))


def _composition(row: ReportRow) -> Html:
    word = "task" if plots.is_by_task(row) else "class"
    colours = task_legend(plots.mean_memory(row)[1].shape[1], word=word)
    hint, draw = f"stored examples of each {word}, mean over seeds", partial(plots.composition_plot, row)
    return _plot(row.label, hint, draw, f"stored examples of each {word}", colours, icon_of(row), low=True)


def _losses(rows: Sequence[ReportRow], names: Sequence[str]) -> Iterator[Html]:
    for name in names:
        having = [row for row in rows if name in plots.loss_names([row])]
        draw = partial(plots.loss_plot, having, name)
        yield _plot(plots.LOSS_WORDS.get(name, name), _line_hint(having), draw, f"loss of {_labels(having)}", low=True)


def _line_hint(rows: Sequence[ReportRow]) -> str:
    return "mean over seeds; thin lines: ends of tasks" if plots.task_ends(rows) else "mean over seeds"


def _labels(series: Sequence[Series]) -> str:
    return ", ".join(line.label for line in series)
