"""Stability over the stream: accuracy on earlier tasks while a later one is learned, and its lowest value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dualnet.metrics import Matrix, Vector, average_accuracy, stability_summary
from dualnet.runs.record import RunRecord

from .plots import task_ends
from .rows import Comparison, ReportRow, mean_over_seeds, thinned
from .style import Draw, Ink, accuracy_mesh, axis_names, colour, dash, marker, step_axis, task_colour
from .tables import Cell, TextTable, compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def was_measured(row: ReportRow) -> bool:
    return any(run.log.stability for run in row.runs)


def stability_table(rows: Sequence[ReportRow], comparison: Comparison) -> TextTable:
    """The accuracy of each row at the end, and the lowest on the way."""
    values = [[_worst_cases(run) for run in row.runs if run.log.stability] for row in rows]
    names = list(values[0][0])
    columns = [compared([[run[name] for run in runs] for runs in values], max, comparison.spread) for name in names]
    lines = [[Cell(row.label), *cells] for row, *cells in zip(rows, *columns, strict=True)]
    return TextTable(["experiment", *(f"{name} ↑" for name in names)], lines, numeric=range(1, len(names) + 1))


def _worst_cases(run: RunRecord) -> dict[str, float]:
    assert run.accuracy is not None
    return {"ACC": average_accuracy(run.accuracy), **stability_summary(run.accuracy, measured(run))}


def over_rows_plot(rows: Sequence[ReportRow], limits: tuple[float, float]) -> Draw:
    """The mean over the earlier tasks, one line for each row; a ring marks its lowest point."""

    def draw(axes: Axes, ink: Ink) -> None:
        for row in rows:
            steps, values = mean_measured(row)
            steps, means = thinned(steps, np.nanmean(values, axis=1), lowest=True)
            axes.plot(steps, means, color=colour(row), linestyle=dash(row), linewidth=1.4)
            _mark_lowest(axes, steps, means, colour(row), marker(row), ink)
        _finish(axes, ink, rows, limits)

    return draw


def over_tasks_plot(row: ReportRow, limits: tuple[float, float]) -> Draw:
    """One line for each earlier task, with a ring at its lowest point."""

    def draw(axes: Axes, ink: Ink) -> None:
        steps, values = thinned(*mean_measured(row), lowest=True)
        for task in range(row.num_tasks - 1):
            known = ~np.isnan(values[:, task])
            if known.any():
                fill = task_colour(task, row.num_tasks)
                axes.plot(steps[known], values[known, task], color=fill, linewidth=1.2)
                _mark_lowest(axes, steps[known], values[known, task], fill, "o", ink)
        _finish(axes, ink, [row], limits)

    return draw


def task_map(row: ReportRow, limits: tuple[float, float]) -> Draw:
    """For many tasks: step by task, the accuracy as a colour."""

    def draw(axes: Axes, ink: Ink) -> None:
        steps, values = thinned(*mean_measured(row), lowest=True)
        accuracy_mesh(axes, steps, np.arange(1.0, row.num_tasks), values.T[:-1], limits)
        step_axis(axes, ink, [])
        axis_names(axes, ink, "step", "earlier task")

    return draw


def _mark_lowest(axes: Axes, steps: Vector, values: Vector, edge: str, form: str, ink: Ink) -> None:
    lowest = int(values.argmin())
    axes.plot(steps[lowest], values[lowest], form, color=edge, markerfacecolor=ink.back, markersize=6, zorder=4)


def _finish(axes: Axes, ink: Ink, rows: Sequence[ReportRow], limits: tuple[float, float]) -> None:
    axes.set_ylim(limits[0] - 1, limits[1] + 1)  # a ring at an end of the scale is whole
    step_axis(axes, ink, task_ends(rows))
    axis_names(axes, ink, "step", "accuracy on earlier tasks (%)")


def mean_measured(row: ReportRow) -> tuple[Vector, Matrix]:
    """Steps, and the accuracy on each task at each of them; NaN where a task is not an earlier one."""
    pairs = (zip(run.log.stability, measured(run), strict=True) for run in row.runs)
    return mean_over_seeds((point.step, line) for pair in pairs for point, line in pair)


def measured(run: RunRecord) -> Matrix:
    """A row for each evaluation of earlier tasks, a column for each task."""
    assert run.accuracy is not None
    values = np.full((len(run.log.stability), len(run.accuracy)), np.nan)
    for line, point in zip(values, run.log.stability, strict=True):
        known = point.accuracy[: len(line)]
        line[: len(known)] = known
    return values
