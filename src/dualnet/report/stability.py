"""Stability over the stream: plots of the accuracy on earlier tasks while a later one is learned."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from dualnet.metrics import Matrix, Vector

from .plots import task_ends
from .rows import ReportRow, mean_over_seeds, measured, thinned
from .style import accuracy_mesh, axis_names, colour, dash, marker, step_axis, task_colour

Limits = tuple[float, float]  # of the accuracies that are shown


def over_rows_plot(rows: Sequence[ReportRow], limits: Limits, axes: Axes) -> None:
    """The mean over the earlier tasks, one line for each row; a ring marks its lowest point."""
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
    accuracy_mesh(axes, steps, np.arange(1.0, row.num_tasks), values.T[:-1], limits)
    step_axis(axes, [])
    axis_names(axes, "step", "earlier task")


def _mark_lowest(axes: Axes, steps: Vector, values: Vector, edge: str, form: str) -> None:
    lowest, inside = int(values.argmin()), axes.get_facecolor()
    axes.plot(steps[lowest], values[lowest], form, color=edge, markerfacecolor=inside, markersize=6, zorder=4)


def _finish(axes: Axes, rows: Sequence[ReportRow], limits: Limits) -> None:
    axes.set_ylim(limits[0] - 1, limits[1] + 1)  # a ring at an end of the scale is whole
    step_axis(axes, task_ends(rows))
    axis_names(axes, "step", "accuracy on earlier tasks (%)")


def mean_measured(row: ReportRow) -> tuple[Vector, Matrix]:
    """Steps, and the accuracy on each task at each of them; NaN where a task is not an earlier one."""
    pairs = (zip(run.log.stability, measured(run), strict=True) for run in row.runs)
    return mean_over_seeds((point.step, line) for pair in pairs for point, line in pair)
