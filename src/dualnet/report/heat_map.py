"""Heat maps of percentages: accuracy matrices by task, confusion matrices by class.

SVG with a number and a tooltip in each cell, or a raster image if there are many tasks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from dualnet.metrics import Matrix
from dualnet.report import style
from dualnet.report.html import elements
from dualnet.report.style import FEW_TASKS, MANY_TASKS, MIN_TEXT_SIZE, PHONE_WIDTH, Limits

CELL, SMALL_CELL, TEXT = 40, 32, 13  # sizes of a cell, and minimum size of text, in SVG units
IMAGE_SIZE = (style.PLOT_WIDTH, 3.6)  # inches
DARK = 0.758  # fraction of the colour scale above which white has a higher contrast than black (at least 4.5:1)
PHONE_NAME_LENGTH, MAX_NAME_LENGTH = 12, 24  # characters of a row or column name


def accuracy_map(accuracy: Matrix, limits: Limits, description: str) -> str:
    if len(accuracy) > MANY_TASKS:
        return style.page_svg(partial(_image, accuracy, limits), description, IMAGE_SIZE)

    def tip(i: int, j: int) -> str:
        return f"after task {i + 1}, on task {j + 1}"

    names = [str(task) for task in range(1, len(accuracy) + 1)]
    digits = 0 if len(accuracy) > FEW_TASKS else 1
    return _heat_map(accuracy, limits, digits, names, ("after task", "tested on task"), description, tip)


def confusion_map(confusion: Matrix, names: Sequence[str], description: str) -> str:
    """A confusion matrix: predictions (columns) in percent of the images of a class (rows)."""

    def tip(i: int, j: int) -> str:
        return names[i] if i == j else f"{names[i]} predicted as {names[j]}"

    return _heat_map(confusion, (0.0, 100.0), None, names, ("class", "prediction"), description, tip)


@dataclass(frozen=True, slots=True)
class Square:
    """A cell of a heat map. It is empty if it has no number."""

    row: int
    column: int
    fill: str
    ink: str = ""
    number: str = ""
    tip: str = ""


def _heat_map(
    values: Matrix,
    limits: Limits,
    digits: int | None,  # decimals; None: whole numbers, and cells that round to 0 stay empty
    names: Sequence[str],
    axes: tuple[str, str],
    description: str,
    tip: Callable[[int, int], str],
) -> str:
    short = [_shorten(name, MAX_NAME_LENGTH) for name in names]
    longest = max(map(len, short))
    most = min(PHONE_NAME_LENGTH, (PHONE_WIDTH / MIN_TEXT_SIZE - 2 - len(names)) / 0.6)  # with text as high as a cell
    fits_phone = longest <= most
    cell = CELL if fits_phone else SMALL_CELL
    size, margin, text = _layout(cell * len(values), longest, fits_phone)
    min_width = 0 if fits_phone else size * MIN_TEXT_SIZE / TEXT  # a phone scrolls
    is_dense = fits_phone and len(values) > FEW_TASKS
    known = np.argwhere(~np.isnan(values)).tolist()
    squares = [_square(i, j, float(values[i, j]), limits, digits, tip(i, j)) for i, j in known]
    return elements().heat_map(squares, short, axes, description, size, margin, text, cell, is_dense, min_width)


def _square(row: int, column: int, value: float, limits: Limits, digits: int | None, tip: str) -> Square:
    number = f"{value:.{digits or 0}f}" if value < 99.95 else "100"
    if digits is None and number == "0":
        return Square(row, column, "var(--grid)")
    ink = "#fff" if value - limits[0] > DARK * (limits[1] - limits[0]) else "#000"
    return Square(row, column, style.accuracy_colour(value, limits), ink, number, f"{tip}: {value:.2f} %")


def _shorten(name: str, longest: int) -> str:
    """The beginning and the end of a long name, since class names may share either.

    >>> _shorten("striped square", 9), _shorten("disc", 9)
    ('stri…uare', 'disc')
    """
    kept = longest // 2
    return name if len(name) <= longest else f"{name[:kept]}…{name[kept + 1 - longest :]}"


def _layout(inside: float, longest: int, fits_phone: bool) -> tuple[float, float, float]:
    """Size of the drawing around its cells, width of its margins, and size of text, if possible readable on a phone.

    The margins fit an axis label and names of `longest` characters, each 0.6 times as wide as high.
    """
    lines = 2 + 0.6 * longest  # heights of text in a margin
    phone_text = MIN_TEXT_SIZE / PHONE_WIDTH  # as a fraction of the size
    size = inside / (1 - phone_text * lines) if fits_phone else 0.0
    text = max(TEXT, phone_text * size)
    size = inside + text * lines
    return size, size - inside, text


def _image(accuracy: Matrix, limits: Limits, axes: Axes) -> None:
    tasks = np.arange(1.0, len(accuracy) + 1)
    style.accuracy_mesh(axes, tasks, tasks, accuracy, limits)
    axes.set_aspect("equal")
    style.axis_names(axes, "tested on task", "after task")


def shared_limits(matrices: Sequence[Matrix]) -> Limits:
    """Limits of a colour scale for all matrices, rounded to multiples of ten.

    >>> shared_limits([np.array([[34.0, 91.0]])])
    (30.0, 100.0)
    """
    values = np.concatenate([matrix[~np.isnan(matrix)] for matrix in matrices])
    if not values.size:
        return 0.0, 100.0
    low, high = math.floor(values.min() / 10) * 10.0, math.ceil(values.max() / 10) * 10.0
    return low, max(high, low + 10)
