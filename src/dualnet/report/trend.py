"""Accuracy against an option in which runs differ, such as the share of labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from dualnet.experiments.record import Scalar
from dualnet.report.rows import Comparison, ReportRow, Series, differing_keys, distinct_labels

MIN_VALUES = 3  # of an option that is plotted without being asked for
# Options that are plotted without being asked for: their words, and the factor of their values.
AXES = {
    "learner.slow.rounds": ("rounds of the slow learner", 1.0),
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
    def words(self) -> str:
        return AXES[self.option][0] if self.option in AXES else self.option

    @property
    def title(self) -> str:
        return f"Accuracy against {self.words}"

    def value_text(self, value: float) -> str:
        return f"{AXES.get(self.option, ('', 1.0))[1] * value:.6g}"

    @property
    def values(self) -> list[float]:
        return sorted({value for line in self.lines for value in line.accuracies})


def trends(comparison: Comparison) -> list[Trend]:
    """The trends of the requested option and of AXES. Raises ValueError if the requested option has none."""
    options = dict.fromkeys(filter(None, (comparison.against, *AXES)))
    drawn = [Trend(option, lines(comparison.rows, option)) for option in options]
    asked = drawn[0] if comparison.against else None
    if asked and not asked.lines:
        differing = differing_keys([row.options for row in comparison.rows])
        usable = ", ".join(key for key in differing if lines(comparison.rows, key)) or "none"
        problem = f"cannot draw accuracy against {comparison.against}: no two finished runs differ only in this number"
        raise ValueError(f"{problem}; options in which some do: {usable}")
    return [trend for trend in drawn if trend is asked or len(trend.values) >= MIN_VALUES]


def lines(rows: Sequence[ReportRow], option: str) -> list[Line]:
    """One line for each group of rows that share all other options and have at least two values of this one."""
    groups: dict[tuple[tuple[str, Scalar], ...], dict[float, list[ReportRow]]] = {}
    for row in rows:
        others = {key: value for key, value in row.options.items() if key not in (option, "name")}
        if is_number(value := row.options.get(option)):
            shared = tuple(sorted({**others, "tasks": row.num_tasks}.items()))
            groups.setdefault(shared, {}).setdefault(value, []).append(row)
    drawn = [(dict(shared), values) for shared, values in groups.items() if len(values) > 1]
    keys = differing_keys([shared for shared, _ in drawn])
    drawn.sort(key=lambda line: [value if is_number(value := line[0].get(key)) else 0.0 for key in keys])
    names = _names([[row for same in values.values() for row in same] for _, values in drawn])
    labels = distinct_labels(names, [shared for shared, _ in drawn])
    return [
        Line(i, labels[i], {value: [acc for row in values[value] for acc in row.accs] for value in sorted(values)})
        for i, (_, values) in enumerate(drawn)
    ]


def _names(lines: Sequence[Sequence[ReportRow]]) -> list[str]:
    """Names for lines: that of the experiment, or its last part, if unique to each line; else that of the learner."""
    whole = [{row.runs[0].name for row in rows} for rows in lines]
    for names in (whole, [{name.rpartition("/")[2] for name in own} for own in whole]):
        if all(len(own) == 1 for own in names) and len(set().union(*names)) == len(names):
            return [own.pop() for own in names]
    return [str(rows[0].options.get("learner.name", rows[0].label)) for rows in lines]


def is_number(value: Scalar) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
