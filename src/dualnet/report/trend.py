"""Accuracy against an option whose values differ between runs: rounds of the slow learner, the labelled share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from dualnet.metrics import average_accuracy

from .rows import ReportRow, Shown, distinct_labels, mean_and_spread
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
class Line(Shown):
    """Rows that differ in one option only."""

    accuracies: dict[float, list[float]]  # ACC of all seeds, by the option's value


def lines(rows: Sequence[ReportRow], trend: Trend) -> list[Line]:
    """One line for all rows that share every other option; only where there are two values or more to connect."""
    groups: dict[tuple[tuple[str, str], ...], dict[float, list[ReportRow]]] = {}
    for row in rows:
        others = sorted((key, value) for key, value in row.options.items() if key not in (trend.option, "name"))
        if (value := _value(row, trend)) is not None:
            groups.setdefault(tuple(others), {}).setdefault(value, []).append(row)
    found = [(dict(others), values) for others, values in groups.items() if len(values) > 1]
    learners = [others.get("learner.name", next(iter(values.values()))[0].label) for others, values in found]
    labels = distinct_labels(learners, [others for others, _ in found])
    return [Line(i, labels[i], _accuracies(values)) for i, (_, values) in enumerate(found)]


def _accuracies(rows: Mapping[float, Sequence[ReportRow]]) -> dict[float, list[float]]:
    return {value: [average_accuracy(a) for row in rows[value] for a in row.accuracies] for value in sorted(rows)}


def trend_plot(drawn: Sequence[Line], trend: Trend, spread: str, axes: Axes) -> None:
    """Accuracy after the last task; the whiskers are the spread over seeds."""
    for line in drawn:
        means, around = zip(*(mean_and_spread(seeds, spread) for seeds in line.accuracies.values()), strict=True)
        error_bars(axes, line, list(line.accuracies), means, around, dash(line))
    axes.set_xticks(sorted({value for line in drawn for value in line.accuracies}))
    axes.xaxis.set_major_formatter("{x:g}")
    axis_names(axes, trend.axis, "accuracy after the last task (%)")


def _value(row: ReportRow, trend: Trend) -> float | None:
    try:
        value = trend.scale * float(row.options[trend.option])
    except (KeyError, ValueError):
        return None
    return value if math.isfinite(value) else None
