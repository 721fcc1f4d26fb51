"""Composition of the memory: how many examples of each task it held whenever a task had ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dualnet.metrics import Matrix

from .look import Draw, Ink, task_axis, task_colour, titles
from .rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def has_memory(row: Row) -> bool:
    return any(run.log.memory for run in row.runs)


def is_by_task(row: Row) -> bool:
    """Whether the tasks of the stored examples are known; else their classes are shown."""
    return all(point.by_task for run in row.runs for point in run.log.memory)


def composition_plot(row: Row) -> Draw:
    """A bar after each task, in layers: the examples of the first task, or class, lie at the bottom."""

    def draw(axes: Axes, ink: Ink) -> None:
        tasks, stored = mean_over_seeds(row)
        bottom = np.zeros(len(tasks))
        for number, layer in enumerate(stored.T):
            fill = task_colour(number, stored.shape[1])
            axes.bar(tasks + 1, layer, 0.8, bottom, color=fill, edgecolor=ink.back, linewidth=0.5)
            bottom += layer
        task_axis(axes, row.num_tasks)
        titles(axes, ink, "tasks learned", "examples stored")

    return draw


def mean_over_seeds(row: Row) -> tuple[NDArray[np.int64], Matrix]:
    """Tasks that have ended, and what was stored then: a row for each of them, a column for each task or class."""
    points = [point for run in row.runs for point in run.log.memory]
    size = min(len(point.stored) for point in points)
    tasks = sorted({point.task for point in points})
    means = [np.mean([point.stored[:size] for point in points if point.task == task], axis=0) for task in tasks]
    return np.array(tasks), np.stack(means)
