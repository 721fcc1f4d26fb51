"""Accuracy against an option in which runs differ, such as the share of labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dualnet.report.rows import Comparison, ReportRow, Series, differing_keys, distinct_labels

# Options that are always plotted if runs differ in them: axis label, and factor of the tick labels.
AXES = {
    "learner.slow_rounds": ("n, rounds of the slow learner per batch", 1.0),
    "labels.share": ("labelled share (%)", 100.0),
}


@dataclass(frozen=True, slots=True)
class Line(Series):
    """Rows that differ in a single option."""

    accuracies: dict[float, list[float]]  # ACC of each seed, by the value of the option


@dataclass(frozen=True, slots=True)
class Trend:
    option: str
    lines: list[Line]

    @property
    def title(self) -> str:
        return f"Accuracy against {self.option}"

    @property
    def values(self) -> list[float]:
        return sorted({value for line in self.lines for value in line.accuracies})


def trends(comparison: Comparison) -> list[Trend]:
    """The trends of the requested option and of AXES. Raises ValueError if the requested option has none."""
    options = dict.fromkeys(filter(None, (comparison.against, *AXES)))
    found = [Trend(option, lines(comparison.rows, option)) for option in options]
    if comparison.against and not found[0].lines:
        raise ValueError(no_trend(comparison.rows, comparison.against))
    return [trend for trend in found if trend.lines]


def no_trend(rows: Sequence[ReportRow], option: str) -> str:
    """Why accuracy cannot be drawn against an option, and against which it can."""
    values = {row.options[option]: _number(row.options[option]) for row in rows if option in row.options}
    if not values:
        problem = "no finished run has this option"
    elif no_numbers := [text for text, value in values.items() if value is None]:
        problem = f"{no_numbers[0]!r} is not a number"
    elif len(values) == 1:
        problem = f"it is {next(iter(values))} in every run"
    else:
        problem = "no two runs differ only in it"
    usable = [key for key in differing_keys([row.options for row in rows]) if lines(rows, key)]
    remedy = f"choose from {', '.join(usable)}" if usable else "no runs differ in a single numeric option"
    return f"cannot draw accuracy against {option}: {problem}; {remedy}"


def lines(rows: Sequence[ReportRow], option: str) -> list[Line]:
    """One line for each group of rows that share all other options and have at least two values of this one."""
    groups: dict[tuple[tuple[str, str], ...], dict[float, list[ReportRow]]] = {}
    for row in rows:
        others = {key: text for key, text in row.options.items() if key not in (option, "name")}
        if (value := _number(row.options.get(option))) is not None:
            key = tuple(sorted({**others, "tasks": str(row.num_tasks)}.items()))
            groups.setdefault(key, {}).setdefault(value, []).append(row)
    found = [(dict(others), values) for others, values in groups.items() if len(values) > 1]
    keys = differing_keys([others for others, _ in found])
    found.sort(key=lambda line: [_number(line[0].get(key)) or 0.0 for key in keys])
    names = _names([[row for rows in values.values() for row in rows] for _, values in found])
    labels = distinct_labels(names, [others for others, _ in found])
    return [
        Line(i, labels[i], {value: [acc for row in values[value] for acc in row.accs] for value in sorted(values)})
        for i, (_, values) in enumerate(found)
    ]


def _names(found: Sequence[Sequence[ReportRow]]) -> list[str]:
    """Names for lines: that of the experiment, or its last part, if unique to each line; else that of the learner."""
    whole = [{row.options["name"] for row in rows} for rows in found]
    for names in (whole, [{name.rpartition("/")[2] for name in own} for own in whole]):
        if all(len(own) == 1 for own in names) and len(set().union(*names)) == len(names):
            return [own.pop() for own in names]
    return [rows[0].options.get("learner.name", rows[0].label) for rows in found]


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
