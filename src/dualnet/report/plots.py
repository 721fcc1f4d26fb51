"""Plots of the report: accuracy and forgetting, losses, contents of the memory, stability, and the picture."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dualnet.metrics import Matrix, Vector, forgetting_per_task, seen_accuracy

from . import style
from .data_set import chance
from .rows import Comparison, ReportRow, mean_and_spread, mean_over_seeds, measured, thinned, values_over_seeds
from .style import FEW_TASKS, MANY_TASKS, PAPER_INK, Limits, axis_names, colour, dash, marker, task_axis, task_colour
from .trend import AXES, Trend, trends

MAX_LABEL = 100  # letters of a label in the picture's legend
MAX_TICKS = 9.5  # of an option's axis: values that are closer than this part of it have no text


def accuracy_plot(rows: Sequence[ReportRow], comparison: Comparison, axes: Axes) -> None:
    """Mean accuracy over the tasks learned so far; the band is the spread over seeds."""
    for row in rows:
        mean, around = values_over_seeds(row, seen_accuracy, comparison.spread)
        if row.is_offline:  # it has learned nothing until it has learned all: a line to compare with
            axes.axhline(mean[-1], color=colour(row), linestyle="dashed", linewidth=1)
        style.line_with_band(axes, row, np.arange(1.0, len(mean) + 1), mean, around)
    if (guessing := chance(rows[0].runs[0])) is not None:
        style.chance_line(axes, guessing)
    task_axis(axes, max(row.num_tasks for row in rows))
    axis_names(axes, "tasks learned", "mean accuracy (%)")


def forgetting_plot(rows: Sequence[ReportRow], comparison: Comparison, axes: Axes) -> None:
    """Points lost on each task between its best and the end; whiskers, or bands, are the spread over seeds."""
    axes.axhline(0, color=axes.xaxis.label.get_color(), linewidth=0.8)
    for place, row in enumerate(rows):
        mean, around = values_over_seeds(row, lambda a: forgetting_per_task(a, comparison.fm), comparison.spread)
        tasks = np.arange(1.0, len(mean) + 1)
        if len(tasks) >= FEW_TASKS:
            style.line_with_band(axes, row, tasks, mean, around)
        else:
            tasks += (place - (len(rows) - 1) / 2) * min(0.2, 0.7 / len(rows))
            style.error_bars(axes, row, tasks, mean, around)
    task_axis(axes, max(row.num_tasks for row in rows) - 1)
    axis_names(axes, "task", "forgetting (points)")


def has_forgetting(row: ReportRow) -> bool:
    """Whether a task was tested before the end, so that its forgetting is known."""
    return not np.isnan([forgetting_per_task(accuracy) for accuracy in row.accuracies]).all()


def loss_plot(rows: Sequence[ReportRow], name: str, axes: Axes) -> None:
    """One loss over the steps of the stream, mean over seeds."""
    for row in rows:
        points = (point for run in row.runs for point in run.log.losses.items())
        steps, losses = mean_over_seeds((step, losses.get(name, math.nan)) for step, losses in points)
        known = ~np.isnan(losses)
        x, y = thinned(steps[known], losses[known])
        axes.plot(x, y, color=colour(row), linestyle=dash(row), linewidth=1.3)
    style.step_axis(axes, task_ends(rows))
    axis_names(axes, "step", "loss")


def loss_names(rows: Sequence[ReportRow]) -> list[str]:
    """The names of all losses that a run of these rows logged, in the order of their first occurrence."""
    points = (losses for row in rows for run in row.runs for losses in run.log.losses.values())
    return list(dict.fromkeys(name for losses in points for name in losses))


def task_ends(rows: Sequence[ReportRow]) -> list[int]:
    """The steps at which a task ends and another begins; none where the rows do not agree, or the tasks are many."""
    ends = [run.log.task_ends for row in rows for run in row.runs]
    agree = all(other == ends[0] for other in ends)
    return ends[0][:-1] if agree and len(ends[0]) <= MANY_TASKS else []


def is_by_task(row: ReportRow) -> bool:
    """Whether the tasks of the stored examples are known; else their classes are shown."""
    return all(run.log.stored_by_task for run in row.runs)


def composition_plot(row: ReportRow, axes: Axes) -> None:
    """A bar for each task that has ended, in layers: examples of the first task, or class, are at the bottom."""
    tasks, stored = mean_stored(row)
    many = stored.size > MANY_TASKS**2  # then one image of touching bars, instead of a shape for each part of a bar
    edge, width = ("none", 0) if many else (axes.get_facecolor(), 0.5)
    corners = (-0.5, 0.5) if many else (-0.4, 0.4, np.nan)  # NaN: a gap follows
    x = (tasks[:, None] + 1 + corners).ravel()
    tops = np.vstack([np.zeros(len(tasks)), stored.cumsum(axis=1).T]).repeat(len(corners), axis=1)
    for number, (bottom, top) in enumerate(pairwise(tops)):
        fill = task_colour(number, stored.shape[1])
        axes.fill_between(
            x, bottom, top, top > bottom, facecolor=fill, edgecolor=edge, linewidth=width, rasterized=many
        )
    axes.set_ylim(bottom=0)
    task_axis(axes, row.num_tasks)
    axis_names(axes, "tasks learned", "examples stored")


def mean_stored(row: ReportRow) -> tuple[Vector, Matrix]:
    """Tasks that have ended, and the examples stored then: a row for each of them, a column for each task or class."""
    points = [point for run in row.runs for point in run.log.stored.items()]
    size = min(len(stored) for _, stored in points)
    return mean_over_seeds((task, stored[:size]) for task, stored in points)


def over_rows_plot(rows: Sequence[ReportRow], limits: Limits, axes: Axes) -> None:
    """Stability: the mean over the earlier tasks, one line for each row; a ring marks its lowest point."""
    for row in rows:
        steps, values = mean_measured(row)
        steps, means = thinned(steps, np.nanmean(values, axis=1), lowest=True)
        axes.plot(steps, means, color=colour(row), linestyle=dash(row), linewidth=1.4)
        _mark_lowest(axes, steps, means, colour(row), marker(row))
    _finish(axes, rows, limits)


def over_tasks_plot(row: ReportRow, limits: Limits, axes: Axes) -> None:
    """One line for each earlier task, with a ring at its lowest point."""
    steps, values = thinned(*mean_measured(row), lowest=True)
    for task in range(row.num_tasks - 1):
        known = ~np.isnan(values[:, task])
        if known.any():
            fill = task_colour(task, row.num_tasks)
            axes.plot(steps[known], values[known, task], color=fill, linewidth=1.2)
            _mark_lowest(axes, steps[known], values[known, task], fill, "o")
    _finish(axes, [row], limits)


def task_map(row: ReportRow, limits: Limits, axes: Axes) -> None:
    """For many tasks: step by task, the accuracy as a colour."""
    steps, values = thinned(*mean_measured(row), lowest=True)
    style.accuracy_mesh(axes, steps, np.arange(1.0, row.num_tasks), values.T[:-1], limits)
    style.step_axis(axes, [])
    axis_names(axes, "step", "earlier task")


def _mark_lowest(axes: Axes, steps: Vector, values: Vector, edge: str, form: str) -> None:
    lowest, inside = int(values.argmin()), axes.get_facecolor()
    axes.plot(steps[lowest], values[lowest], form, color=edge, markerfacecolor=inside, markersize=6, zorder=4)


def _finish(axes: Axes, rows: Sequence[ReportRow], limits: Limits) -> None:
    axes.set_ylim(limits[0] - 1, limits[1] + 1)  # a ring at an end of the scale is whole
    style.step_axis(axes, task_ends(rows))
    axis_names(axes, "step", "accuracy on earlier tasks (%)")


def mean_measured(row: ReportRow) -> tuple[Vector, Matrix]:
    """Steps, and the accuracy on each task at each of them; NaN where a task is not an earlier one."""
    pairs = (zip(run.log.stability, measured(run), strict=True) for run in row.runs)
    return mean_over_seeds((step, line) for pair in pairs for step, line in pair)


def trend_plot(trend: Trend, comparison: Comparison, axes: Axes) -> None:
    """Accuracy after the last task against an option; the whiskers are the spread over seeds."""
    places = _places(trend.values)
    span = max(places.values()) - min(places.values())
    step = span * min(0.012, 0.04 / len(trend.lines))  # aside, so that no marker hides another
    for number, line in enumerate(trend.lines):
        x = [places[value] + step * (number - (len(trend.lines) - 1) / 2) for value in line.accuracies]
        points = [mean_and_spread(seeds, comparison.spread) for seeds in line.accuracies.values()]
        means, around = np.transpose(points)
        style.error_bars(axes, line, x, means, around, dash(line))
    ticks = trend.values[:1]
    for value in trend.values:
        if places[value] - places[ticks[-1]] > span / MAX_TICKS:
            ticks.append(value)
    name, factor = AXES.get(trend.option, (trend.option, 1.0))
    axes.set_xticks([places[value] for value in ticks], [f"{factor * value:.6g}" for value in ticks])
    axis_names(axes, name, "accuracy after the last task (%)")


def _places(values: Sequence[float]) -> dict[float, float]:
    """Where values lie on the axis: evenly, if they span more than a decade, as the small ones would touch."""
    sizes = [abs(value) for value in values if value]
    even = max(sizes) > 10 * min(sizes)
    return {value: float(i) if even else value for i, value in enumerate(values)}


def picture_bytes(comparison: Comparison, kind: str) -> bytes:
    """On white: accuracy over the stream and forgetting of each task, side by side; or accuracy against an option."""
    rows = comparison.rows
    draws = {"Accuracy over the stream": partial(accuracy_plot, rows, comparison)}
    if comparison.against:
        trend = trends(comparison)[0]
        draws = {trend.title: partial(trend_plot, trend, comparison)}
    elif forgetting := [row for row in rows if has_forgetting(row)]:
        draws["Forgetting of each task"] = partial(forgetting_plot, forgetting, comparison)
    with style.styled(PAPER_INK, svg_text="path", salt="picture") as figure:
        figure.set_size_inches(4.7 * len(draws), 3.3)
        for axes, (title, draw) in zip(figure.subplots(1, len(draws), squeeze=False)[0], draws.items(), strict=True):
            draw(axes)
            axes.set_title(title)
        _legend(figure)
        return style.saved(figure, kind, dpi=200)


def _legend(figure: Figure) -> None:
    """Below the plots, outside the data; a dollar in a name is a dollar, not mathematics."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    labels = [label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…" for label in labels]
    width, height = figure.get_size_inches()
    # An inch holds about 13 letters of this size, and the line before a label takes 7.
    columns = min(len(labels), max(1, int(13 * width / (max(map(len, labels)) + 7))))
    figure.set_size_inches(width, height + 0.2 * math.ceil(len(labels) / columns))
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
