"""Plots of the report: accuracy over the stream, forgetting of each task, losses. Drawn by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from dualnet.metrics import forgetting_per_task, seen_accuracy

from .look import PAPER_INK, Draw, Ink, colour, dash, marker, saved, styled, task_axis, titles
from .rows import Comparison, Row, values_over_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABEL = 100  # letters of a label in the picture's legend
MAX_LOSS_POINTS = 250  # more cannot be told apart on a page


def accuracy_plot(rows: Sequence[Row], comparison: Comparison) -> Draw:
    """Mean accuracy over the tasks seen so far; the band is the spread over seeds."""

    def draw(axes: Axes, ink: Ink) -> None:
        for row in rows:
            mean, around = values_over_seeds(row, seen_accuracy, comparison.spread)
            tasks = np.arange(1, len(mean) + 1)
            axes.fill_between(tasks, mean - around, mean + around, color=colour(row), alpha=0.18, linewidth=0)
            axes.plot(tasks, mean, color=colour(row), marker=marker(row), linestyle=dash(row), label=row.label)
        task_axis(axes, max(row.num_tasks for row in rows))
        titles(axes, ink, "tasks learned", "mean accuracy (%)")

    return draw


def forgetting_plot(rows: Sequence[Row], comparison: Comparison) -> Draw:
    """Points lost on each task between its best and the end; the whiskers are the spread over seeds."""

    def draw(axes: Axes, ink: Ink) -> None:
        axes.axhline(0, color=ink.text, linewidth=0.8)
        for place, row in enumerate(rows):
            mean, around = values_over_seeds(row, lambda a: forgetting_per_task(a, comparison.fm), comparison.spread)
            tasks = np.arange(1, len(mean) + 1) + (place - (len(rows) - 1) / 2) * min(0.2, 0.7 / len(rows))
            whiskers = None if np.isnan(around).all() else around
            axes.errorbar(tasks, mean, whiskers, color=colour(row), fmt=marker(row), elinewidth=1.2)
        task_axis(axes, max(row.num_tasks for row in rows) - 1)
        titles(axes, ink, "task", "forgetting (points)")

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
            axes.plot(steps, values, color=colour(row), linestyle=dash(row), linewidth=1.3)
        axes.locator_params(axis="x", nbins=7, integer=True)
        titles(axes, ink, "step", "loss")

    return draw


def loss_names(rows: Sequence[Row]) -> list[str]:
    """The names of all losses that a run of these rows logged, in the order of their first occurrence."""
    points = (point for row in rows for run in row.runs for point in run.log.losses)
    return list(dict.fromkeys(name for point in points for name in point.losses))


def has_loss(row: Row, name: str) -> bool:
    return any(name in point.losses for run in row.runs for point in run.log.losses)


def task_ends(rows: Sequence[Row]) -> list[int]:
    """The steps at which a task ends and another begins; none where the rows do not agree."""
    ends = [run.log.task_ends for row in rows for run in row.runs]
    return ends[0][:-1] if all(other == ends[0] for other in ends) else []


def _mean_loss(row: Row, name: str) -> tuple[list[float], list[float]]:
    """Steps and losses: mean over seeds, then over neighbours where the points are too many."""
    values: dict[int, list[float]] = {}
    for run in row.runs:
        for point in run.log.losses:
            values.setdefault(point.step, []).append(point.losses.get(name, math.nan))
    known = [(step, fmean(v)) for step, v in sorted(values.items()) if not math.isnan(fmean(v))]
    size = math.ceil(len(known) / MAX_LOSS_POINTS) or 1
    bins = [known[i : i + size] for i in range(0, len(known), size)]
    return [fmean(s for s, _ in part) for part in bins], [fmean(v for _, v in part) for part in bins]


def picture_bytes(comparison: Comparison, kind: str) -> bytes:
    """Accuracy over the stream and forgetting of each task, side by side, on white."""
    rows = comparison.rows
    draws = {"Accuracy over the stream": accuracy_plot(rows, comparison)}
    forgetting = [row for row in rows if has_forgetting(row)]
    if forgetting:
        draws["Forgetting of each task"] = forgetting_plot(forgetting, comparison)
    with styled(PAPER_INK, svg_text="path", salt="picture") as figure:
        figure.set_size_inches(4.7 * len(draws), 3.3)
        for axes, (title, draw) in zip(figure.subplots(1, len(draws), squeeze=False)[0], draws.items(), strict=True):
            draw(axes, PAPER_INK)
            axes.set_title(title, loc="left", color=PAPER_INK.text, fontsize=11, fontweight="bold", pad=10)
        _legend(figure)
        return saved(figure, kind, facecolor="white", dpi=200)


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
