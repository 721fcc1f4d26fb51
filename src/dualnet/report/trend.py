"""Accuracy against an option whose values differ between runs: rounds of the slow learner, the labelled share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from dualnet.metrics import spread

from .look import Draw, Ink, colour, dash, marker, titles
from .rows import Comparison, Row, metric_values, told_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Trend:
    """What is drawn against which option."""

    option: str
    title: str
    axis: str
    scale: float = 1.0  # what a value is multiplied by, to be shown


TRENDS = (
    Trend("learner.slow_rounds", "Accuracy against n", "n, rounds of the slow learner per batch"),
    Trend("labels.share", "Accuracy against the labelled share", "labelled share (%)", 100.0),
)


@dataclass(frozen=True, slots=True)
class Line:
    """Rows that differ in one option only, by its values."""

    index: int
    label: str
    rows: dict[float, list[Row]]

    def accuracies(self, value: float, fm: str) -> list[float]:
        return [accuracy for row in self.rows[value] for accuracy in metric_values(row, "ACC", fm)]


def lines(rows: Sequence[Row], trend: Trend) -> list[Line]:
    """One line for all rows that share every other option; only where there are two values or more to connect."""
    groups: dict[object, dict[float, list[Row]]] = {}
    for row in rows:
        value = _value(row, trend)
        if value is not None:
            groups.setdefault(tuple(sorted(_others(row, trend).items())), {}).setdefault(value, []).append(row)
    found = [values for values in groups.values() if len(values) > 1]
    firsts = [next(iter(values.values()))[0] for values in found]
    labels = told_apart([_learner(row) for row in firsts], [_others(row, trend) for row in firsts])
    return [Line(i, label, dict(sorted(found[i].items()))) for i, label in enumerate(labels)]


def trend_plot(drawn: Sequence[Line], trend: Trend, comparison: Comparison) -> Draw:
    """Accuracy after the last task; the whiskers are the spread over seeds."""

    def draw(axes: Axes, ink: Ink) -> None:
        for line in drawn:
            seeds = [line.accuracies(value, comparison.fm) for value in line.rows]
            around = [spread(values, comparison.spread) for values in seeds]
            axes.errorbar(
                list(line.rows),
                [fmean(values) for values in seeds],
                None if all(s is None for s in around) else [math.nan if s is None else s for s in around],
                color=colour(line),
                marker=marker(line),
                linestyle=dash(line),
                elinewidth=1.2,
            )
        axes.set_xticks(sorted({value for line in drawn for value in line.rows}))
        axes.xaxis.set_major_formatter("{x:g}")
        titles(axes, ink, trend.axis, "accuracy after the last task (%)")

    return draw


def _value(row: Row, trend: Trend) -> float | None:
    try:
        value = trend.scale * float(row.options[trend.option])
    except (KeyError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _others(row: Row, trend: Trend) -> dict[str, str]:
    """All options that may tell one line from another."""
    return {key: value for key, value in row.options.items() if key not in (trend.option, "name")}


def _learner(row: Row) -> str:
    return row.options.get("learner.name", row.label)
