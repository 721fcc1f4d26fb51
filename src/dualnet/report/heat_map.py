"""The accuracy matrix as a heat map in hand-made SVG: numbers that scale with it, and a tooltip for each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from dualnet.metrics import Matrix

from .look import mixed

# From pale to deep blue: its lightness falls all the way, so it reads without colour too.
SCALE = ((0xF1, 0xF5, 0xF9), (0xC6, 0xDB, 0xEC), (0x7F, 0xB3, 0xD8), (0x2F, 0x7C, 0xBA), (0x08, 0x30, 0x6B))
CELL = 40  # units of the drawing; the page scales it
MARGIN = 46  # room for the numbers of the tasks and the names of the axes
MANY_TASKS = 8  # above this a phone has no room for numbers, and they lose their digit


def heat_map(accuracy: Matrix, limits: tuple[float, float], description: str) -> str:
    """One matrix, mean over seeds. limits are the accuracies at the ends of the colour scale."""
    size = MARGIN + CELL * len(accuracy)
    many = " many" if len(accuracy) > MANY_TASKS else ""
    cells = [_cell(i, j, float(accuracy[i, j]), limits, many != "") for i, j in np.argwhere(~np.isnan(accuracy))]
    ticks = [_ticks(task) for task in range(len(accuracy))]
    head = (
        f'<svg class="heat{many}" style="max-width: {min(640, size * 1.5):g}px" role="img"'
        f' aria-label="{escape(description)}" viewBox="0 0 {size} {size}">'
    )
    return "".join([head, *ticks, *cells, _axis_names(size), "</svg>"])


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


def scale_bar(limits: tuple[float, float]) -> str:
    """The legend of the colours."""
    stops = ", ".join(_hex(stop / 8) for stop in range(9))
    bar = f'<span class="bar" style="background: linear-gradient(to right, {stops})"></span>'
    return f'<p class="scale">{limits[0]:.0f} % {bar} {limits[1]:.0f} %</p>'


def _cell(i: int, j: int, value: float, limits: tuple[float, float], many: bool) -> str:
    share = (value - limits[0]) / (limits[1] - limits[0])
    x, y = MARGIN + CELL * int(j), MARGIN + CELL * int(i)
    fill = _hex(share)
    number = f"{value:.0f}" if many else f"{value:.1f}"
    return (
        f"<g><title>after task {i + 1}, on task {j + 1}: {value:.2f} %</title>"
        f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" rx="3" fill="{fill}"/>'
        f'<text class="number" x="{x + CELL / 2:g}" y="{y + CELL / 2 + 5:g}" fill="{_ink(fill)}">{number}</text></g>'
    )


def _ticks(task: int) -> str:
    middle = MARGIN + CELL * task + CELL / 2
    return (
        f'<text class="tick" x="{middle:g}" y="{MARGIN - 6}">{task + 1}</text>'
        f'<text class="tick" x="{MARGIN - 13}" y="{middle + 5:g}">{task + 1}</text>'
    )


def _axis_names(size: int) -> str:
    middle = (MARGIN + size) / 2
    return (
        f'<text class="axis" x="{middle:g}" y="16">tested on task</text>'
        f'<text class="axis" transform="translate(14 {middle:g}) rotate(-90)">after task</text>'
    )


def _ink(fill: str) -> str:
    """White or dark, whichever stands out more (relative luminance, WCAG 2); at least 4 to 1 on every fill."""
    parts = [int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return "#fff" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.21 else "#17212b"


def _hex(share: float) -> str:
    return mixed(SCALE, share)
