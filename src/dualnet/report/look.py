"""How the report's plots look, on a page and on paper: colours, marks, axes, and SVG that follows the page."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, safe for colour-blind eyes; without black and yellow, which vanish on a dark or a white page.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#888888")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "✖")  # the same marks as text
DASHES = ("solid", "dashed", "dotted", "dashdot")  # the next time round the palette
# Tasks have an order, and so have their colours, from the first to the last: lightness rises all the way, and both
# ends stand out from a white page and from a dark one.
TASK_RAMP = ((0x7A, 0x4F, 0xCF), (0xB0, 0x4B, 0xA6), (0xD7, 0x5C, 0x72), (0xE2, 0x79, 0x3F), (0xDD, 0xA0, 0x1A))


class Shown(Protocol):
    """What a plot shows and a legend names; the index fixes its look, the same in every plot."""

    @property
    def index(self) -> int: ...
    @property
    def label(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Ink:
    """Colours of what is not data."""

    text: str
    grid: str
    back: str


# Placeholders in the page's plots, replaced by colours that follow the colour scheme.
PAGE_INK = Ink(text="#010203", grid="#040506", back="#070809")
PAPER_INK = Ink(text="#333333", grid="#dddddd", back="#ffffff")

Draw = Callable[["Axes", Ink], None]


def colour(shown: Shown) -> str:
    return PALETTE[shown.index % len(PALETTE)]


def mark(shown: Shown) -> int:
    """Which of MARKERS and GLYPHS stands for it. It moves on each time round the palette: no two look alike."""
    return (shown.index + shown.index // len(PALETTE)) % len(MARKERS)


def marker(shown: Shown) -> str:
    return MARKERS[mark(shown)]


def dash(shown: Shown) -> str:
    return DASHES[shown.index // len(PALETTE) % len(DASHES)]


def task_colour(task: int, num_tasks: int) -> str:
    """The colour of a task, from the first to the last of so many.

    >>> task_colour(0, 3), task_colour(1, 3), task_colour(0, 1)
    ('#7a4fcf', '#d75c72', '#7a4fcf')
    """
    return mixed(TASK_RAMP, task / max(num_tasks - 1, 1))


def mixed(scale: tuple[tuple[int, int, int], ...], share: float) -> str:
    """The colour at a share of a scale."""
    place = min(max(share, 0.0), 1.0) * (len(scale) - 1)
    low = min(int(place), len(scale) - 2)
    parts = (a + (b - a) * (place - low) for a, b in zip(scale[low], scale[low + 1], strict=True))
    return "#" + "".join(f"{round(part):02x}" for part in parts)


def task_axis(axes: Axes, last: int) -> None:
    axes.set_xlim(0.5, last + 0.5)
    axes.set_xticks(range(1, last + 1, 1 if last <= 20 else math.ceil(last / 10)))


def titles(axes: Axes, ink: Ink, below: str, beside: str) -> None:
    axes.set_xlabel(below, color=ink.text)
    axes.set_ylabel(beside, color=ink.text)
    axes.locator_params(axis="y", nbins=6)


def page_svg(draw: Draw, description: str, size: tuple[float, float]) -> str:
    """A plot as SVG to stand inside a page: its text takes the page's font and colour."""
    with styled(PAGE_INK, svg_text="none", salt=description) as figure:
        figure.set_size_inches(size)
        draw(figure.add_subplot(), PAGE_INK)
        text = saved(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # names like axes_1, the same in every plot
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None
    head = f'<svg class="plot" role="img" aria-label="{escape(description)}" {view[0]}>'
    return head + _page_colours(text[text.index(">") + 1 :])


def _page_colours(svg: str) -> str:
    for ink, name in ((PAGE_INK.text, "currentColor"), (PAGE_INK.grid, "var(--grid)"), (PAGE_INK.back, "var(--card)")):
        svg = svg.replace(ink, name)
    for i, value in enumerate(PALETTE):
        svg = svg.replace(value, f"var(--row-{i})")
    return svg


@contextmanager
def styled(ink: Ink, svg_text: str, salt: str) -> Iterator[Figure]:
    """A figure in the report's style; the settings of the user stay outside, and come back afterwards."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_look(ink, svg_text, salt))
        yield Figure(layout=ConstrainedLayoutEngine(wspace=0.05))


def _look(ink: Ink, svg_text: str, salt: str) -> dict[Any, Any]:
    return {
        "svg.fonttype": svg_text,
        "svg.hashsalt": salt,
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.edgecolor": ink.text,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": ink.grid,
        "grid.linewidth": 0.7,
        "text.color": ink.text,
        "xtick.color": ink.text,
        "ytick.color": ink.text,
        "ytick.major.size": 0,
        "lines.linewidth": 1.8,
        "lines.markersize": 4.5,
    }


def saved(figure: Figure, kind: str, **options: Any) -> bytes:
    """The same figure gives the same bytes: no date, no version."""
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, transparent="facecolor" not in options, metadata=metadata, **options)
    return buffer.getvalue()
