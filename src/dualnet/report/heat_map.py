"""The accuracy matrix as a heat map: SVG with a figure and a tooltip in each cell, or an image where tasks are many."""

import math
from collections.abc import Sequence
from functools import partial
from html import escape

import numpy as np
from matplotlib.axes import Axes

from dualnet.metrics import Matrix

from .style import FEW_TASKS, MANY_TASKS, accuracy_colour, accuracy_mesh, axis_names, page_svg

CELL = 40  # units of the drawing; the page scales it
MARGIN = 46  # space for the numbers of the tasks and the names of the axes
IMAGE_SIZE = (4.8, 4.4)  # inches
DARK = 0.715  # share of the colour scale above which white text has the higher contrast (WCAG 2): 4 to 1 or more


def heat_map(accuracy: Matrix, limits: tuple[float, float], description: str) -> str:
    """One matrix, mean over seeds. limits are the accuracies at the ends of the colour scale."""
    if len(accuracy) > MANY_TASKS:
        return page_svg(partial(_image, accuracy, limits), description, IMAGE_SIZE)
    size = MARGIN + CELL * len(accuracy)
    middle = (MARGIN + size) / 2
    parts = [
        f'<svg class="heat{" dense" if len(accuracy) > FEW_TASKS else ""}" role="img" viewBox="0 0 {size} {size}"'
        f' style="max-width: {min(640, size * 1.5):g}px" aria-label="{escape(description)}">'
        f'<text class="axis" x="{middle:g}" y="16">tested on task</text>'
        f'<text class="axis" transform="translate(14 {middle:g}) rotate(-90)">after task</text>'
    ]
    for task in range(len(accuracy)):
        place = MARGIN + CELL * task + CELL / 2
        parts.append(f'<text class="tick" x="{place:g}" y="{MARGIN - 6}">{task + 1}</text>')
        parts.append(f'<text class="tick" x="{MARGIN - 13}" y="{place + 5:g}">{task + 1}</text>')
    parts += [_cell(i, j, float(accuracy[i, j]), limits, len(accuracy)) for i, j in np.argwhere(~np.isnan(accuracy))]
    return "".join([*parts, "</svg>"])


def _image(accuracy: Matrix, limits: tuple[float, float], axes: Axes) -> None:
    tasks = np.arange(1.0, len(accuracy) + 1)
    accuracy_mesh(axes, tasks, tasks, accuracy, limits)
    axes.set_aspect("equal")
    axis_names(axes, "tested on task", "after task")


def shared_limits(matrices: Sequence[Matrix]) -> tuple[float, float]:
    """Ends of one colour scale for all matrices, in whole tens.

    >>> shared_limits([np.array([[34.0, 91.0]])])
    (30.0, 100.0)
    """
    values = np.concatenate([matrix[~np.isnan(matrix)] for matrix in matrices])
    if not values.size:
        return 0.0, 100.0
    low, high = math.floor(values.min() / 10) * 10.0, math.ceil(values.max() / 10) * 10.0
    return low, max(high, low + 10)


def _cell(i: int, j: int, value: float, limits: tuple[float, float], num_tasks: int) -> str:
    x, y = MARGIN + CELL * int(j), MARGIN + CELL * int(i)
    fill = accuracy_colour(value, limits)
    ink = "#fff" if value - limits[0] > DARK * (limits[1] - limits[0]) else "#17212b"
    number = f"{value:.{0 if num_tasks > FEW_TASKS else 1}f}"
    return (
        f"<g><title>after task {i + 1}, on task {j + 1}: {value:.2f} %</title>"
        f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" rx="3" fill="{fill}"/>'
        f'<text class="number" x="{x + CELL / 2:g}" y="{y + CELL / 2 + 5:g}" fill="{ink}">{number}</text></g>'
    )
