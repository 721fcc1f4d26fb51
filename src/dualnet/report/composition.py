"""Composition of the memory: how many examples of each task it held at the end of each task."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes

from dualnet.metrics import Matrix, Vector

from .rows import ReportRow, mean_over_seeds
from .style import MANY_TASKS, axis_names, task_axis, task_colour


def has_memory(row: ReportRow) -> bool:
    return any(run.log.memory for run in row.runs)


def is_by_task(row: ReportRow) -> bool:
    """Whether the tasks of the stored examples are known; else their classes are shown."""
    return all(point.by_task for run in row.runs for point in run.log.memory)


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
    points = [point for run in row.runs for point in run.log.memory]
    size = min(len(point.stored) for point in points)
    return mean_over_seeds((point.task, point.stored[:size]) for point in points)
