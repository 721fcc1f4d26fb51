"""Style of the report's plots, on a page and on paper: colours, markers, axes, and SVG in the colours of the page."""

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from dualnet.metrics import Matrix, Vector

from .rows import Shown

# Okabe and Ito, safe for colour-blind eyes; without black and yellow, which vanish on a dark or a white page.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#888888")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "✖")  # the same marks as text
DASHES = ("solid", "dashed", "dotted", "dashdot")  # the next time round the palette
# Tasks have an order, and so have their colours: lightness rises from the first to the last, and both ends stand out
# from a white page and from a dark one.
TASK_RAMP = LinearSegmentedColormap.from_list("tasks", ["#7a4fcf", "#b04ba6", "#d75c72", "#e2793f", "#dda01a"], N=1025)
# Accuracies, from pale to deep blue: lightness falls all the way, so the scale reads without colour too.
ACCURACIES = ["#f1f5f9", "#c6dbec", "#7fb3d8", "#2f7cba", "#08306b"]
ACCURACY_RAMP = LinearSegmentedColormap.from_list("accuracy", ACCURACIES, N=1025)
FEW_TASKS = 10  # so many have a name each in a legend, and figures with a decimal in a matrix
MANY_TASKS = 20  # beyond it single cells, bars and markers are too small: plots become images, bands or plain lines


Ink = tuple[str, str, str]  # colours of text, grid and background
PAPER_INK: Ink = ("#333333", "#dddddd", "#ffffff")
PAGE_INK: Ink = ("#010203", "#040506", "#070809")  # placeholders for colours that follow the page's colour scheme
PAGE_COLOURS = dict(zip(PAGE_INK, ("currentColor", "var(--grid)", "var(--card)"), strict=True)) | {
    colour: f"var(--row-{i})" for i, colour in enumerate(PALETTE)
}
SHEET = Path(__file__).with_name("plots.mplstyle")
PHONE_WIDTH = 311  # pixels of a plot on a screen of 390, beside a scroll bar
SMALLEST_TEXT = 11.2  # pixels, there
PLOT_WIDTH, TEXT_SIZE = 3.85, 10  # inches and points of the page's plots; 72 points are an inch
assert TEXT_SIZE * PHONE_WIDTH / (72 * PLOT_WIDTH) >= SMALLEST_TEXT
IMAGE_DPI = 150  # of images inside of a plot: about two pixels for each of the screen's
Draw = Callable[[Axes], None]
Limits = tuple[float, float]  # the accuracies at the ends of an axis or a colour scale


def colour(shown: Shown) -> str:
    return PALETTE[shown.index % len(PALETTE)]


def mark(shown: Shown) -> int:
    """Which of MARKERS and GLYPHS stands for it; another one each time round the palette, so that no two are alike."""
    return (shown.index + shown.index // len(PALETTE)) % len(MARKERS)


def marker(shown: Shown) -> str:
    return MARKERS[mark(shown)]


def dash(shown: Shown) -> str:
    return DASHES[shown.index // len(PALETTE) % len(DASHES)]


def task_colour(task: float, num_tasks: int) -> str:
    """The colour of a task among all tasks.

    >>> task_colour(0, 3), task_colour(1, 3), task_colour(0, 1)
    ('#7a4fcf', '#d75c72', '#7a4fcf')
    """
    return to_hex(TASK_RAMP(task / max(num_tasks - 1, 1)))


def accuracy_colour(accuracy: float, limits: Limits) -> str:
    return to_hex(ACCURACY_RAMP((accuracy - limits[0]) / (limits[1] - limits[0])))


def task_axis(axes: Axes, last: int) -> None:
    axes.set_xlim(0.5, last + 0.5)
    if last <= MANY_TASKS:
        axes.set_xticks(range(1, last + 1, math.ceil(last / FEW_TASKS)))


def step_axis(axes: Axes, ends: Sequence[int]) -> None:
    """Thin lines mark the ends of tasks."""
    for end in ends:
        axes.axvline(end, color=matplotlib.rcParams["grid.color"], linewidth=0.8, zorder=0)
    axes.locator_params(axis="x", nbins=7, integer=True)


def axis_names(axes: Axes, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.locator_params(axis="y", nbins=6)


def error_bars(axes: Axes, shown: Shown, x: Any, mean: Any, around: Any, line: str = "none") -> None:
    """Markers, joined by a line of some style or by none, with whiskers for the spread where there is one."""
    known = None if all(map(math.isnan, around)) else around
    bars = axes.errorbar(x, mean, known, color=colour(shown), marker=marker(shown), linestyle=line, elinewidth=1.2)
    bars.set_label(legend_label(shown))


def legend_label(shown: Shown) -> str:
    return f" {shown.label}" if shown.label.startswith("_") else shown.label  # matplotlib has no legend for _names


def line_with_band(axes: Axes, shown: Shown, x: Vector, mean: Vector, around: Vector) -> None:
    """A line, and a band for the spread over seeds; a marker at each point while they are few."""
    form = marker(shown) if len(x) <= MANY_TASKS else None
    axes.fill_between(x, mean - around, mean + around, color=colour(shown), alpha=0.18, linewidth=0)
    axes.plot(x, mean, color=colour(shown), marker=form, linestyle=dash(shown), label=legend_label(shown))


def chance_line(axes: Axes, accuracy: float) -> None:
    """What guessing would reach, named at the left end, in the colour of the axes."""
    ink = axes.xaxis.label.get_color()
    axes.axhline(accuracy, color=ink, linestyle="dotted", linewidth=1)
    place = {"xy": (0, accuracy), "xycoords": ("axes fraction", "data"), "xytext": (2, 2)}
    axes.annotate("chance", **place, textcoords="offset points", color=ink, va="bottom")


def accuracy_mesh(axes: Axes, x: Vector, y: Vector, accuracy: Matrix, limits: Limits) -> None:
    """Accuracies [y, x] as colours, in one image: a shape for each cell would make a page of megabytes."""
    axes.pcolormesh(
        x, y, accuracy, cmap=ACCURACY_RAMP, vmin=limits[0], vmax=limits[1], shading="nearest", rasterized=True
    )
    axes.grid(visible=False)
    axes.invert_yaxis()


def page_svg(draw: Draw, description: str, size: tuple[float, float]) -> str:
    """A plot as SVG inside a page: its text has the font and the colours of the page."""
    with styled(PAGE_INK, svg_text="none", salt=description, text_size=TEXT_SIZE) as figure:
        figure.set_size_inches(size)
        draw(figure.add_subplot())
        text = saved(figure, "svg", dpi=IMAGE_DPI, transparent=True).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # names like axes_1, the same in every plot
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None
    head = f'<svg class="plot" role="img" aria-label="{escape(description)}" {view[0]}>'
    body = text[text.index(">") + 1 :]
    for ink, name in PAGE_COLOURS.items():
        body = body.replace(ink, name)
    return head + body


@contextmanager
def styled(ink: Ink, svg_text: str, salt: str, text_size: float = 9) -> Iterator[Figure]:
    """A figure in the report's style, whatever the user's settings are; they are restored afterwards."""
    text, grid, back = ink
    texts = ("text.color", "xtick.color", "ytick.color", "axes.labelcolor", "axes.edgecolor")
    colours: dict[Any, str] = dict.fromkeys(texts, text) | {"grid.color": grid, "axes.facecolor": back}
    own = {**colours, "svg.fonttype": svg_text, "svg.hashsalt": salt, "font.size": text_size}
    with matplotlib.style.context(["default", SHEET, own]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield Figure(layout=ConstrainedLayoutEngine(wspace=0.05))


def saved(figure: Figure, kind: str, **options: Any) -> bytes:
    """The same figure gives the same bytes: no date, no version."""
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()
