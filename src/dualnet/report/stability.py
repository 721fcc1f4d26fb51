"""Stability over the stream: accuracy on earlier tasks while a later one is learned, and how low it fell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dualnet.metrics import Matrix, Vector, average_accuracy, stability_summary

from .look import Draw, Ink, colour, dash, marker, task_colour, titles
from .plots import task_ends
from .rows import Comparison, Row
from .runs import Run
from .tables import Cell, Table, compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 300  # of a line; more cannot be told apart on a page


def was_measured(row: Row) -> bool:
    return any(run.log.stability for run in row.runs)


def stability_table(rows: Sequence[Row], comparison: Comparison) -> Table:
    """How each row ends, and how low it fell on the way."""
    values = [[_worst_cases(run) for run in row.runs if run.log.stability] for row in rows]
    columns = [
        compared([[run[name] for run in runs] for runs in values], max, comparison.spread) for name in values[0][0]
    ]
    lines = [[Cell(row.label), *cells] for row, *cells in zip(rows, *columns, strict=True)]
    header = ["experiment", *(f"{name} ↑" for name in values[0][0])]
    return Table(header, lines, numeric=range(1, len(header)))


def _worst_cases(run: Run) -> dict[str, float]:
    assert run.accuracy is not None
    return {"ACC": average_accuracy(run.accuracy), **stability_summary(run.accuracy, measured(run))}


def over_rows_plot(rows: Sequence[Row], limits: tuple[float, float]) -> Draw:
    """The mean over the earlier tasks, one line for each row; a ring marks its lowest point."""

    def draw(axes: Axes, ink: Ink) -> None:
        for row in rows:
            steps, values = mean_over_seeds(row)
            steps, means = thinned(steps, np.array([line[~np.isnan(line)].mean() for line in values]))
            axes.plot(steps, means, color=colour(row), linestyle=dash(row), linewidth=1.4)
            mark_lowest(axes, steps, means, colour(row), marker(row), ink)
        _finish(axes, ink, rows, limits)

    return draw


def over_tasks_plot(row: Row, limits: tuple[float, float]) -> Draw:
    """One line for each earlier task; a ring marks its lowest point."""

    def draw(axes: Axes, ink: Ink) -> None:
        steps, values = mean_over_seeds(row)
        for task in range(row.num_tasks - 1):
            known = ~np.isnan(values[:, task])
            if known.any():
                shown, column = thinned(steps[known], values[known, task])
                axes.plot(shown, column, color=task_colour(task, row.num_tasks), linewidth=1.2)
                mark_lowest(axes, shown, column, task_colour(task, row.num_tasks), "o", ink)
        _finish(axes, ink, [row], limits)

    return draw


def mark_lowest(axes: Axes, steps: Vector, values: Vector, edge: str, form: str, ink: Ink) -> None:
    lowest = int(values.argmin())
    axes.plot(steps[lowest], values[lowest], form, color=edge, markerfacecolor=ink.back, markersize=6, zorder=4)


def accuracy_limits(rows: Sequence[Row]) -> tuple[float, float]:
    """One scale for all plots: from the lowest accuracy to the highest, with a margin."""
    values = np.concatenate([mean_over_seeds(row)[1].ravel() for row in rows])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = max(0.05 * (high - low), 1.0)
    return low - margin, high + margin


def _finish(axes: Axes, ink: Ink, rows: Sequence[Row], limits: tuple[float, float]) -> None:
    axes.set_ylim(limits)
    for end in task_ends(rows):
        axes.axvline(end, color=ink.grid, linewidth=0.8, zorder=0)
    axes.locator_params(axis="x", nbins=7, integer=True)
    titles(axes, ink, "step", "accuracy on earlier tasks (%)")


def mean_over_seeds(row: Row) -> tuple[Vector, Matrix]:
    """Steps, and the accuracy on each task at each of them; NaN where a task is not an earlier one."""
    found: dict[int, list[Vector]] = {}
    for run in row.runs:
        for point, line in zip(run.log.stability, measured(run), strict=True):
            found.setdefault(point.step, []).append(line)
    steps = sorted(found)
    return np.array(steps, dtype=np.float64), np.stack([np.mean(found[step], axis=0) for step in steps])


def measured(run: Run) -> Matrix:
    """A row for each look at earlier tasks, a column for each task."""
    assert run.accuracy is not None
    values = np.full((len(run.log.stability), len(run.accuracy)), np.nan)
    for line, point in zip(values, run.log.stability, strict=True):
        known = point.accuracy[: len(line)]
        line[: len(known)] = known
    return values


def thinned(steps: Vector, values: Vector) -> tuple[Vector, Vector]:
    """Of too many neighbours the lowest stands for all: the worst case is what these lines are for."""
    size = -(-len(steps) // MAX_POINTS)
    lowest = [start + int(values[start : start + size].argmin()) for start in range(0, len(steps), size)]
    return steps[lowest], values[lowest]
