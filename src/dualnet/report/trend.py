"""Accuracy against an option whose values differ between runs: rounds of the slow learner, the labelled share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from .rows import Comparison, ReportRow, distinct_labels, mean_and_spread, metric_values
from .style import axis_names, dash, error_bars


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
    rows: dict[float, list[ReportRow]]

    def accuracies(self, value: float, fm: str) -> list[float]:
        return [accuracy for row in self.rows[value] for accuracy in metric_values(row, "ACC", fm)]


def lines(rows: Sequence[ReportRow], trend: Trend) -> list[Line]:
    """One line for all rows that share every other option; only where there are two values or more to connect."""
    groups: dict[object, dict[float, list[ReportRow]]] = {}
    for row in rows:
        value = _value(row, trend)
        if value is not None:
            groups.setdefault(tuple(sorted(_others(row, trend).items())), {}).setdefault(value, []).append(row)
    found = [values for values in groups.values() if len(values) > 1]
    firsts = [next(iter(values.values()))[0] for values in found]
    learners = [row.options.get("learner.name", row.label) for row in firsts]
    labels = distinct_labels(learners, [_others(row, trend) for row in firsts])
    return [Line(i, label, dict(sorted(found[i].items()))) for i, label in enumerate(labels)]


def trend_plot(drawn: Sequence[Line], trend: Trend, comparison: Comparison, axes: Axes) -> None:
    """Accuracy after the last task; the whiskers are the spread over seeds."""
    for line in drawn:
        points = [mean_and_spread(line.accuracies(value, comparison.fm), comparison.spread) for value in line.rows]
        means, around = zip(*points, strict=True)
        error_bars(axes, line, list(line.rows), means, around, dash(line))
    axes.set_xticks(sorted({value for line in drawn for value in line.rows}))
    axes.xaxis.set_major_formatter("{x:g}")
    axis_names(axes, trend.axis, "accuracy after the last task (%)")


def _value(row: ReportRow, trend: Trend) -> float | None:
    try:
        value = trend.scale * float(row.options[trend.option])
    except (KeyError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _others(row: ReportRow, trend: Trend) -> dict[str, str]:
    """All options that may tell one line from another."""
    return {key: value for key, value in row.options.items() if key not in (trend.option, "name")}
