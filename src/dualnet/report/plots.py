"""Plots of the report: accuracy, forgetting, losses, memory, anytime accuracy, stability, trends, the picture."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dualnet.metrics import Matrix, Vector, forgetting_per_task, mean_and_spread, seen_accuracy
from dualnet.report import style
from dualnet.report.rows import Comparison, ReportRow, stability_matrix
from dualnet.report.stream_facts import chance
from dualnet.report.style import FEW_TASKS, MANY_TASKS, Limits
from dualnet.report.trend import Trend, trends

MAX_POINTS = 300  # in a line; more cannot be distinguished on a page
MAX_LABEL_LENGTH = 100  # characters of a label in the legend of the picture
MAX_TICKS = 9.5  # of an option's axis: values closer than 1 / MAX_TICKS of its length are not labelled


def accuracy_plot(rows: Sequence[ReportRow], comparison: Comparison, axes: Axes) -> None:
    """Mean accuracy over the tasks learned so far, with bands for the spread over seeds; chance if it is not below."""
    for row in rows:
        mean, spread = mean_and_spread([seen_accuracy(accuracy) for accuracy in row.accuracies], comparison.spread)
        if row.is_offline:  # it has only a final accuracy, drawn as a reference line
            axes.axhline(
                mean[-1], color=style.colour(row), linestyle="dashed", linewidth=1, gid=style.spread_id(row.index)
            )
        style.line_with_band(axes, row, np.arange(1.0, len(mean) + 1), mean, spread)
    if (guessing := chance(rows[0].runs[0])) is not None and guessing >= axes.get_ylim()[0]:
        style.chance_line(axes, guessing)
    style.task_axis(axes, max(row.num_tasks for row in rows))
    style.axis_names(axes, "tasks learned", "mean accuracy (%)")


def forgetting_plot(rows: Sequence[ReportRow], comparison: Comparison, axes: Axes) -> None:
    """Forgetting of each task, with error bars or, for many tasks, bands for the spread over seeds."""
    axes.axhline(0, color=axes.xaxis.label.get_color(), linewidth=0.8)
    for place, row in enumerate(rows):
        forgotten = [forgetting_per_task(accuracy, comparison.fm) for accuracy in row.accuracies]
        mean, spread = mean_and_spread(forgotten, comparison.spread)
        tasks = np.arange(1.0, len(mean) + 1)
        if len(tasks) >= FEW_TASKS:
            style.line_with_band(axes, row, tasks, mean, spread)
        else:
            tasks += (place - (len(rows) - 1) / 2) * min(0.2, 0.7 / len(rows))
            style.error_bars(axes, row, tasks, mean, spread)
    style.task_axis(axes, max(row.num_tasks for row in rows) - 1)
    style.axis_names(axes, "task", "forgetting (points)")


def has_forgetting(row: ReportRow) -> bool:
    """Whether any task was tested before the end, so that its forgetting is defined."""
    return not np.isnan([forgetting_per_task(accuracy) for accuracy in row.accuracies]).all()


def loss_plot(rows: Sequence[ReportRow], name: str, axes: Axes) -> None:
    """A loss over the steps of the stream, mean over seeds."""
    for row in rows:
        points = (point for run in row.runs for point in run.log.losses.items())
        steps, losses = mean_over_seeds((step, losses.get(name, math.nan)) for step, losses in points)
        known = ~np.isnan(losses)
        x, y = downsample(steps[known], losses[known])
        style.line(axes, row, x, y)
    style.step_axis(axes, task_ends(rows))
    style.axis_names(axes, "step", "loss")


LOSS_WORDS = {
    "labels": "Loss on the labelled images of the batch",
    "replay": "Loss on labelled images of the memory",
    "logits": "Distance to the logits in the memory",
    "soft_labels": "Distance to the soft labels in the memory",
    "slow": "Loss of the slow learner",
    "controller": "Loss of the controller",
}


def loss_names(rows: Sequence[ReportRow]) -> list[str]:
    """The names of all losses that the runs logged, in the order of first occurrence."""
    points = (losses for row in rows for run in row.runs for losses in run.log.losses.values())
    return list(dict.fromkeys(name for losses in points for name in losses))


def task_ends(rows: Sequence[ReportRow]) -> list[int]:
    """The last step of each task but the last; empty if the rows differ or there are many tasks."""
    ends = [run.log.task_ends for row in rows for run in row.runs]
    agree = all(other == ends[0] for other in ends)
    return ends[0][:-1] if agree and len(ends[0]) <= MANY_TASKS else []


def is_by_task(row: ReportRow) -> bool:
    """Whether the stored examples are counted by task rather than by class."""
    return all(run.log.stored_by_task for run in row.runs)


def composition_plot(row: ReportRow, axes: Axes) -> None:
    """A stacked bar for the end of each task: the stored examples by task or class, the first at the bottom."""
    tasks, stored = mean_memory(row)
    many = stored.size > MANY_TASKS**2  # then a raster image of adjacent bars rather than a shape for each segment
    edge, width = ("none", 0) if many else (axes.get_facecolor(), 0.5)
    corners = (-0.5, 0.5) if many else (-0.4, 0.4, np.nan)  # NaN: a gap follows
    x = (tasks[:, None] + 1 + corners).ravel()
    tops = np.vstack([np.zeros(len(tasks)), stored.cumsum(axis=1).T]).repeat(len(corners), axis=1)
    for number, (bottom, top) in enumerate(pairwise(tops)):
        fill = style.task_colour(number, stored.shape[1])
        axes.fill_between(
            x, bottom, top, top > bottom, facecolor=fill, edgecolor=edge, linewidth=width, rasterized=many
        )
    axes.set_ylim(bottom=0)
    style.task_axis(axes, row.num_tasks)
    style.axis_names(axes, "tasks learned", "examples stored")


def mean_memory(row: ReportRow) -> tuple[Vector, Matrix]:
    """The tasks, and the number of examples stored after each of them, [tasks, tasks or classes]."""
    points = [point for run in row.runs for point in run.log.stored.items()]
    size = min(len(stored) for _, stored in points)
    return mean_over_seeds((task, stored[:size]) for task, stored in points)


def anytime_plot(rows: Sequence[ReportRow], axes: Axes) -> None:
    """Accuracy on the classes seen so far over the steps of the stream, mean over seeds."""
    for row in rows:
        steps, values = mean_over_seeds(point for run in row.runs for point in run.log.anytime.items())
        x, y = downsample(steps, values)
        style.line(axes, row, x, y)
    style.step_axis(axes, task_ends(rows))
    style.axis_names(axes, "step", "accuracy (%)")


def stability_of_rows_plot(rows: Sequence[ReportRow], limits: Limits, axes: Axes) -> None:
    """Mean accuracy on earlier tasks, one line for each row; a ring marks its lowest point."""
    for row in rows:
        steps, values = mean_stability(row)
        steps, means = downsample(steps, np.nanmean(values, axis=1), lowest=True)
        style.line(axes, row, steps, means)
        _mark_lowest(axes, row.index, steps, means, style.colour(row), style.marker(row))
    _stability_axes(axes, rows, limits)


def stability_of_tasks_plot(row: ReportRow, limits: Limits, axes: Axes) -> None:
    """Accuracy on each earlier task, one line for each; a ring marks its lowest point."""
    steps, values = downsample(*mean_stability(row), lowest=True)
    for task in range(row.num_tasks - 1):
        known = ~np.isnan(values[:, task])
        if known.any():
            fill = style.task_colour(task, row.num_tasks)
            axes.plot(steps[known], values[known, task], color=fill, linewidth=1.2, gid=style.line_id(task))
            _mark_lowest(axes, task, steps[known], values[known, task], fill, "o")
    _stability_axes(axes, [row], limits)


def stability_map(row: ReportRow, limits: Limits, axes: Axes) -> None:
    """Accuracy on each earlier task as colours over steps, for many tasks."""
    steps, values = downsample(*mean_stability(row), lowest=True)
    style.accuracy_mesh(axes, steps, np.arange(1.0, row.num_tasks), values.T[:-1], limits)
    style.step_axis(axes, [])
    style.axis_names(axes, "step", "earlier task")


def _mark_lowest(axes: Axes, number: int, steps: Vector, values: Vector, edge: str, form: str) -> None:
    lowest, inside, name = int(values.argmin()), axes.get_facecolor(), style.spread_id(number)
    axes.plot(steps[lowest], values[lowest], form, color=edge, markerfacecolor=inside, markersize=6, zorder=4, gid=name)


def _stability_axes(axes: Axes, rows: Sequence[ReportRow], limits: Limits) -> None:
    axes.set_ylim(limits[0] - 1, limits[1] + 1)  # so that rings at the limits are not cut off
    style.step_axis(axes, task_ends(rows))
    style.axis_names(axes, "step", "accuracy on earlier tasks (%)")


def mean_stability(row: ReportRow) -> tuple[Vector, Matrix]:
    """Steps, and the mean accuracy at each of them, [steps, tasks]; NaN for tasks that were not yet finished."""
    pairs = (zip(run.log.stability, stability_matrix(run), strict=True) for run in row.runs)
    return mean_over_seeds((step, line) for pair in pairs for step, line in pair)


def mean_over_seeds(points: Iterable[tuple[int, Any]]) -> tuple[Vector, Any]:
    """The steps (or tasks) of the points of all seeds, sorted, and the mean of the values at each of them.

    >>> mean_over_seeds([(20, [1, 4]), (10, [0, 0]), (20, [3, 4])])
    (array([10., 20.]), array([[0., 0.],
           [2., 4.]]))
    """
    by_step: dict[int, list[Any]] = {}
    for step, values in points:
        by_step.setdefault(step, []).append(values)
    steps = sorted(by_step)
    return np.array(steps, dtype=np.float64), np.array([np.mean(by_step[step], axis=0) for step in steps])


def downsample(steps: Vector, values: Any, lowest: bool = False) -> tuple[Vector, Any]:
    """At most MAX_POINTS points: neighbours are merged into their mean or, with `lowest`, their minimum."""
    starts = np.arange(0, len(steps), math.ceil(len(steps) / MAX_POINTS) or 1)
    counts = np.diff(starts, append=len(steps))
    middles = np.add.reduceat(steps, starts) / counts
    if lowest:
        return middles, np.fmin.reduceat(values, starts, axis=0)
    return middles, (np.add.reduceat(values, starts, axis=0).T / counts).T


def trend_plot(trend: Trend, comparison: Comparison, axes: Axes) -> None:
    """Accuracy after the last task against an option, with error bars for the spread over seeds."""
    positions = _positions(trend.values)
    span = max(positions.values()) - min(positions.values())
    step = span * min(0.012, 0.04 / len(trend.lines))  # horizontal offset, so that markers do not overlap
    for number, line in enumerate(trend.lines):
        x = [positions[value] + step * (number - (len(trend.lines) - 1) / 2) for value in line.accuracies]
        points = [mean_and_spread(seeds, comparison.spread) for seeds in line.accuracies.values()]
        means, spreads = np.transpose(points)
        style.error_bars(axes, line, x, means, spreads, style.dash(line))
    ticks = trend.values[:1]
    for value in trend.values:
        if positions[value] - positions[ticks[-1]] > span / MAX_TICKS:
            ticks.append(value)
    axes.set_xticks([positions[value] for value in ticks], [*map(trend.value_text, ticks)])
    style.axis_names(axes, trend.words, "accuracy after the last task (%)")


def _positions(values: Sequence[float]) -> dict[float, float]:
    """Positions of values on the axis: evenly spaced if they span more than a decade, or small ones would overlap."""
    sizes = [abs(value) for value in values if value]
    even = max(sizes) > 10 * min(sizes)
    return {value: float(i) if even else value for i, value in enumerate(values)}


def picture_bytes(comparison: Comparison, path: Path) -> bytes:
    """The picture: accuracy over the stream and forgetting of each task, or accuracy against an option."""
    rows = [replace(row, index=index) for index, row in enumerate(comparison.rows)]  # also of several settings
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("svg", "png"):
        raise ValueError(f"cannot draw {path.name!r}; the file name must end in .svg or .png")
    if not rows:
        raise ValueError(f"nothing to draw: none of the {len(comparison.unfinished)} runs is finished")
    draws = {"Accuracy over the stream": partial(accuracy_plot, rows, comparison)}
    if comparison.against:
        trend = trends(comparison)[0]
        draws = {trend.title: partial(trend_plot, trend, comparison)}
    elif forgetting := [row for row in rows if has_forgetting(row)]:
        draws["Forgetting of each task"] = partial(forgetting_plot, forgetting, comparison)
    with style.styled(style.PICTURE_THEME, svg_text="path", salt="picture") as figure:
        figure.set_size_inches(4.7 * len(draws), 3.3)
        for axes, (title, draw) in zip(figure.subplots(1, len(draws), squeeze=False)[0], draws.items(), strict=True):
            draw(axes)
            axes.set_title(title)
        _legend(figure)
        return style.saved(figure, kind, dpi=200)


def _legend(figure: Figure) -> None:
    """A legend below the plots. A dollar sign in a name is not math."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    labels = [label if len(label) <= MAX_LABEL_LENGTH else f"{label[: MAX_LABEL_LENGTH - 1]}…" for label in labels]
    width, height = figure.get_size_inches()
    # An inch fits about 13 characters of this size, and the handle of a label takes the space of 7.
    columns = min(len(labels), max(1, int(13 * width / (max(map(len, labels)) + 7))))
    figure.set_size_inches(width, height + 0.2 * math.ceil(len(labels) / columns))
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
