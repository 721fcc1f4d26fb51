"""Style of the plots, on the page and in pictures: colours, markers, axes, and SVG in the colours of the page."""

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from dualnet.metrics import Matrix, Vector
from dualnet.report.html import elements
from dualnet.report.rows import Series

# The colour-blind safe palette of Okabe and Ito, without black and yellow, which vanish on a dark or a white page; sky
# blue and orange are darker, so that each has a contrast of at least 3:1 with white.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#3399cc", "#b8860b", "#888888")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "✖")  # the same markers as text
DASHES = ("solid", "dashed", "dotted", "dashdot")  # changes each time the palette repeats
# Colours of tasks, in order: lightness increases from the first to the last, and both ends contrast with a white and
# with a dark page.
TASK_COLOURS = LinearSegmentedColormap.from_list(
    "tasks", ["#7a4fcf", "#b04ba6", "#d75c72", "#e2793f", "#dda01a"], N=1025
)
# Colours of accuracies, from light to dark blue: lightness decreases throughout, so the scale works without colour too.
ACCURACY_COLOURS = LinearSegmentedColormap.from_list(
    "accuracy", ["#f1f5f9", "#c6dbec", "#7fb3d8", "#2f7cba", "#08306b"], N=1025
)
FEW_TASKS = 10  # up to here each has an entry in the legend, and numbers in a matrix have a decimal
MANY_TASKS = 20  # beyond this cells, bars and markers are too small: plots become images, bands or plain lines

Theme = tuple[str, str, str]  # colours of text, grid and background
PICTURE_THEME: Theme = ("#333333", "#dddddd", "#ffffff")
PAGE_THEME: Theme = ("#010203", "#040506", "#070809")  # placeholders, replaced by PAGE_COLOURS
PAGE_COLOURS = dict(zip(PAGE_THEME, ("currentColor", "var(--grid)", "var(--card)"), strict=True)) | {
    colour: f"var(--row-{i})" for i, colour in enumerate(PALETTE)
}
STYLE_FILE = Path(__file__).with_name("plots.mplstyle")
PHONE_WIDTH = 311  # pixels of a plot on a screen 390 pixels wide, with a scroll bar
MIN_TEXT_SIZE = 11.2  # pixels, at that width
PLOT_WIDTH, TEXT_SIZE = 3.85, 10  # inches and points of the page's plots; 72 points are an inch
assert TEXT_SIZE * PHONE_WIDTH / (72 * PLOT_WIDTH) >= MIN_TEXT_SIZE
IMAGE_DPI = 150  # of raster images in a plot: about two pixels for each screen pixel
Draw = Callable[[Axes], None]
Limits = tuple[float, float]  # of an accuracy axis or colour scale


def colour(series: Series) -> str:
    return PALETTE[series.index % len(PALETTE)]


def marker_index(series: Series) -> int:
    """The index into MARKERS and GLYPHS; shifted each time the palette repeats, so that no two series look alike."""
    return (series.index + series.index // len(PALETTE)) % len(MARKERS)


def marker(series: Series) -> str:
    return MARKERS[marker_index(series)]


def dash(series: Series) -> str:
    return DASHES[series.index // len(PALETTE) % len(DASHES)]


def task_colour(task: float, num_tasks: int) -> str:
    """The colour of a task among all tasks.

    >>> task_colour(0, 3), task_colour(1, 3), task_colour(0, 1)
    ('#7a4fcf', '#d75c72', '#7a4fcf')
    """
    return to_hex(TASK_COLOURS(task / max(num_tasks - 1, 1)))


def accuracy_colour(accuracy: float, limits: Limits) -> str:
    return to_hex(ACCURACY_COLOURS((accuracy - limits[0]) / (limits[1] - limits[0])))


def task_axis(axes: Axes, last: int) -> None:
    axes.set_xlim(0.5, last + 0.5)
    if last <= MANY_TASKS:
        axes.set_xticks(range(1, last + 1, math.ceil(last / FEW_TASKS)))


def step_axis(axes: Axes, ends: Sequence[int]) -> None:
    """An axis of steps, with thin lines at the ends of tasks."""
    for end in ends:
        axes.axvline(end, color=matplotlib.rcParams["grid.color"], linewidth=0.8, zorder=0)
    axes.locator_params(axis="x", nbins=7, integer=True)


def axis_names(axes: Axes, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.locator_params(axis="y", nbins=6)


def error_bars(axes: Axes, series: Series, x: Any, mean: Any, spread: Any, line: str = "none") -> None:
    """Markers with error bars for the spread, if it is known, optionally joined by a line."""
    known = None if all(map(math.isnan, spread)) else spread
    bars = axes.errorbar(x, mean, known, color=colour(series), marker=marker(series), linestyle=line, elinewidth=1.2)
    bars.set_label(legend_label(series))
    points, *others = bars.get_children()
    points.set_gid(line_id(series.index))
    for part in others:
        part.set_gid(spread_id(series.index))


def legend_label(series: Series) -> str:
    return f" {series.label}" if series.label.startswith("_") else series.label  # matplotlib omits labels like _name


def line_with_band(axes: Axes, series: Series, x: Vector, mean: Vector, spread: Vector) -> None:
    """A line with a band for the spread over seeds, and markers unless there are many points."""
    form = marker(series) if len(x) <= MANY_TASKS else None
    band = axes.fill_between(x, mean - spread, mean + spread, color=colour(series), alpha=0.18, linewidth=0)
    band.set_gid(spread_id(series.index))
    line(axes, series, x, mean, form, 1.8)


def line(axes: Axes, series: Series, x: Vector, y: Vector, form: str | None = None, width: float = 1.3) -> None:
    (drawn,) = axes.plot(x, y, color=colour(series), linestyle=dash(series), marker=form, linewidth=width)
    drawn.set(label=legend_label(series), gid=line_id(series.index))


def line_id(number: int) -> str:
    """The id of a line in the SVG; on the page it becomes an attribute, by which page.js knows the line."""
    return f"line-{number}"


def spread_id(number: int) -> str:
    """The id of what belongs to a line: its band, error bars and rings."""
    return f"spread-{number}"


def chance_line(axes: Axes, accuracy: float) -> None:
    """A labelled line for the accuracy of random guessing."""
    text = axes.xaxis.label.get_color()
    axes.axhline(accuracy, color=text, linestyle="dotted", linewidth=1)
    place = {"xy": (0, accuracy), "xycoords": ("axes fraction", "data"), "xytext": (2, 2)}
    axes.annotate("chance", **place, textcoords="offset points", color=text, va="bottom")


def accuracy_mesh(axes: Axes, x: Vector, y: Vector, accuracy: Matrix, limits: Limits) -> None:
    """Accuracies [y, x] as colours, in one raster image: a shape for each cell would make the page too large."""
    axes.pcolormesh(
        x, y, accuracy, cmap=ACCURACY_COLOURS, vmin=limits[0], vmax=limits[1], shading="nearest", rasterized=True
    )
    axes.grid(visible=False)
    axes.invert_yaxis()


def page_svg(draw: Draw, description: str, size: tuple[float, float]) -> str:
    """A plot as inline SVG, with the font and the colours of the page."""
    with styled(PAGE_THEME, svg_text="none", salt=description, text_size=TEXT_SIZE) as figure:
        figure.set_size_inches(size)
        draw(axes := figure.add_subplot())
        text = saved(figure, "svg", dpi=IMAGE_DPI, transparent=True).decode()
        scale = _scale(axes, 72 * size[1])
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="(line|spread)-(\d+)">', r'<g data-\1="\2">', text)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # names like axes_1, the same in every plot
    view = re.search(r'viewBox="([^"]*)"', text)
    assert view is not None
    body = text[text.index(">") + 1 :]
    for placeholder, name in PAGE_COLOURS.items():
        body = body.replace(placeholder, name)
    return elements().plot(description, view[1], body, scale)


def _scale(axes: Axes, height: float) -> str:
    """Where the values of y lie in the drawing: "height of low, low, height of high, high"."""
    box, (low, high) = axes.get_position(), axes.get_ylim()
    return f"{height * (1 - box.y0):.3f} {low:.6g} {height * (1 - box.y1):.3f} {high:.6g}"


@contextmanager
def styled(theme: Theme, svg_text: str, salt: str, text_size: float = 9) -> Iterator[Figure]:
    """A figure in the report's style, independent of the user's matplotlib settings, which are restored afterwards."""
    text, grid, back = theme
    texts = ("text.color", "xtick.color", "ytick.color", "axes.labelcolor", "axes.edgecolor")
    colours: dict[Any, str] = dict.fromkeys(texts, text) | {"grid.color": grid, "axes.facecolor": back}
    settings = {**colours, "svg.fonttype": svg_text, "svg.hashsalt": salt, "font.size": text_size}
    with matplotlib.style.context(["default", STYLE_FILE, settings]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield Figure(layout=ConstrainedLayoutEngine(wspace=0.05))


def saved(figure: Figure, kind: str, **options: Any) -> bytes:
    """The figure as reproducible bytes, without a date or version."""
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()
