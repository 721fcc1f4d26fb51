"""Plots of the report: accuracy over the stream, forgetting of each task, losses. Drawn by matplotlib."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from dualnet.metrics import forgetting_per_task, seen_accuracy

from .rows import Comparison, Row, values_over_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, safe for colour-blind eyes; without black and yellow, which vanish on a dark or a white page.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#888888")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "✖")  # the same marks as text
DASHES = ("solid", "dashed", "dotted", "dashdot")  # the next time round the palette
MAX_LABEL = 100  # letters of a label in the picture's legend
MAX_LOSS_POINTS = 250  # more cannot be told apart on a page


@dataclass(frozen=True, slots=True)
class Ink:
    """Colours of what is not data."""

    text: str
    grid: str


# Placeholders in the page's plots, replaced by colours that follow the colour scheme.
PAGE_INK = Ink(text="#010203", grid="#040506")
PAPER_INK = Ink(text="#333333", grid="#dddddd")

Draw = Callable[["Axes", Ink], None]


def accuracy_plot(rows: Sequence[Row], comparison: Comparison) -> Draw:
    """Mean accuracy over the tasks seen so far; the band is the spread over seeds."""

    def draw(axes: Axes, ink: Ink) -> None:
        for row in rows:
            mean, around = values_over_seeds(row, seen_accuracy, comparison.spread)
            tasks = np.arange(1, len(mean) + 1)
            axes.fill_between(tasks, mean - around, mean + around, color=colour(row), alpha=0.18, linewidth=0)
            axes.plot(tasks, mean, color=colour(row), marker=_marker(row), linestyle=_dash(row), label=row.label)
        _task_axis(axes, max(row.num_tasks for row in rows))
        _titles(axes, ink, "tasks learned", "mean accuracy (%)")

    return draw


def forgetting_plot(rows: Sequence[Row], comparison: Comparison) -> Draw:
    """Points lost on each task between its best and the end; the whiskers are the spread over seeds."""

    def draw(axes: Axes, ink: Ink) -> None:
        axes.axhline(0, color=ink.text, linewidth=0.8)
        for place, row in enumerate(rows):
            mean, around = values_over_seeds(row, lambda a: forgetting_per_task(a, comparison.fm), comparison.spread)
            tasks = np.arange(1, len(mean) + 1) + (place - (len(rows) - 1) / 2) * min(0.2, 0.7 / len(rows))
            whiskers = None if np.isnan(around).all() else around
            axes.errorbar(tasks, mean, whiskers, color=colour(row), fmt=_marker(row), elinewidth=1.2)
        _task_axis(axes, max(row.num_tasks for row in rows) - 1)
        _titles(axes, ink, "task", "forgetting (points)")

    return draw


def has_forgetting(row: Row) -> bool:
    """Whether a task was tested before the end, so that its forgetting is known."""
    return not np.isnan([forgetting_per_task(accuracy) for accuracy in row.accuracies]).all()


def loss_plot(rows: Sequence[Row], name: str) -> Draw:
    """One loss over the steps of the stream, mean over seeds. Thin lines mark the ends of tasks."""

    def draw(axes: Axes, ink: Ink) -> None:
        for end in task_ends(rows):
            axes.axvline(end, color=ink.grid, linewidth=0.8)
        for row in rows:
            steps, values = _mean_loss(row, name)
            axes.plot(steps, values, color=colour(row), linestyle=_dash(row), linewidth=1.3)
        axes.locator_params(axis="x", nbins=7, integer=True)
        _titles(axes, ink, "step", "loss")

    return draw


def loss_names(rows: Sequence[Row]) -> list[str]:
    """The names of all losses that a run of these rows logged, in the order of their first occurrence."""
    points = (point for row in rows for run in row.runs for point in run.losses)
    return list(dict.fromkeys(name for point in points for name in point.losses))


def has_loss(row: Row, name: str) -> bool:
    return any(name in point.losses for run in row.runs for point in run.losses)


def task_ends(rows: Sequence[Row]) -> list[int]:
    """The steps at which a task ends and another begins; none where the rows do not agree."""
    ends = [run.task_ends for row in rows for run in row.runs]
    return ends[0][:-1] if all(other == ends[0] for other in ends) else []


def _mean_loss(row: Row, name: str) -> tuple[list[float], list[float]]:
    """Steps and losses: mean over seeds, then over neighbours where the points are too many."""
    values: dict[int, list[float]] = {}
    for run in row.runs:
        for point in run.losses:
            values.setdefault(point.step, []).append(point.losses.get(name, math.nan))
    known = [(step, fmean(v)) for step, v in sorted(values.items()) if not math.isnan(fmean(v))]
    size = math.ceil(len(known) / MAX_LOSS_POINTS) or 1
    bins = [known[i : i + size] for i in range(0, len(known), size)]
    return [fmean(s for s, _ in part) for part in bins], [fmean(v for _, v in part) for part in bins]


def colour(row: Row) -> str:
    """The colour of a row, the same in every plot."""
    return PALETTE[row.index % len(PALETTE)]


def mark(row: Row) -> int:
    """Which of MARKERS and GLYPHS stands for a row. It moves on each time round the palette: no two rows look alike."""
    return (row.index + row.index // len(PALETTE)) % len(MARKERS)


def _marker(row: Row) -> str:
    return MARKERS[mark(row)]


def _dash(row: Row) -> str:
    return DASHES[row.index // len(PALETTE) % len(DASHES)]


def _task_axis(axes: Axes, last: int) -> None:
    axes.set_xlim(0.5, last + 0.5)
    axes.set_xticks(range(1, last + 1, 1 if last <= 20 else math.ceil(last / 10)))


def _titles(axes: Axes, ink: Ink, below: str, beside: str) -> None:
    axes.set_xlabel(below, color=ink.text)
    axes.set_ylabel(beside, color=ink.text)
    axes.locator_params(axis="y", nbins=6)


def page_svg(draw: Draw, description: str, size: tuple[float, float]) -> str:
    """A plot as SVG to stand inside a page: its text takes the page's font and colour."""
    with _style(PAGE_INK, svg_text="none", salt=description) as figure:
        figure.set_size_inches(size)
        draw(figure.add_subplot(), PAGE_INK)
        text = _save(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # names like axes_1, the same in every plot
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None
    head = f'<svg class="plot" role="img" aria-label="{escape(description)}" {view[0]}>'
    return head + _page_colours(text[text.index(">") + 1 :])


def _page_colours(svg: str) -> str:
    svg = svg.replace(PAGE_INK.text, "currentColor").replace(PAGE_INK.grid, "var(--grid)")
    for i, value in enumerate(PALETTE):
        svg = svg.replace(value, f"var(--row-{i})")
    return svg


def picture_bytes(comparison: Comparison, kind: str) -> bytes:
    """Accuracy over the stream and forgetting of each task, side by side, on white."""
    rows = comparison.rows
    draws = {"Accuracy over the stream": accuracy_plot(rows, comparison)}
    forgetting = [row for row in rows if has_forgetting(row)]
    if forgetting:
        draws["Forgetting of each task"] = forgetting_plot(forgetting, comparison)
    with _style(PAPER_INK, svg_text="path", salt="picture") as figure:
        figure.set_size_inches(4.7 * len(draws), 3.3)
        for axes, (title, draw) in zip(figure.subplots(1, len(draws), squeeze=False)[0], draws.items(), strict=True):
            draw(axes, PAPER_INK)
            axes.set_title(title, loc="left", color=PAPER_INK.text, fontsize=11, fontweight="bold", pad=10)
        _legend(figure)
        return _save(figure, kind, facecolor="white", dpi=200)


def _legend(figure: Figure) -> None:
    """Below the plots, outside the data; a dollar in a name is a dollar, not mathematics."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    labels = [label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…" for label in labels]
    columns = _legend_columns(figure, labels)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.2 * math.ceil(len(labels) / columns))
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _legend_columns(figure: Figure, labels: Sequence[str]) -> int:
    """As many as fit: at this size of type, an inch holds about 13 letters, and a line before them takes 7."""
    room = 13 * figure.get_size_inches()[0]
    return min(len(labels), max(1, int(room / (max(map(len, labels)) + 7))))


@contextmanager
def _style(ink: Ink, svg_text: str, salt: str) -> Iterator[Figure]:
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


def _save(figure: Figure, kind: str, **options: Any) -> bytes:
    """The same figure gives the same bytes: no date, no version."""
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, transparent="facecolor" not in options, metadata=metadata, **options)
    return buffer.getvalue()
