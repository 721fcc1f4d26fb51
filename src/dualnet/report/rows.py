"""Rows of the report: runs that differ only in their seed are one row, and rows of one setting are compared."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualnet.metrics import Matrix, Vector, average_accuracy, spread
from dualnet.runs.record import LABELS, RunRecord, options_as_text
from dualnet.text import printable

from .data_set import count_text, data_set_name
from .runs import find_runs

DASH = "—"  # there is no value
MAX_POINTS = 300  # of a line; more cannot be told apart on a page


@dataclass(frozen=True, slots=True)
class Shown:
    """What a plot shows and a legend names; the index fixes its colour and marker, the same in every plot."""

    index: int
    label: str


@dataclass(frozen=True, slots=True)
class ReportRow(Shown):
    """The finished runs of one experiment, one for each seed."""

    runs: list[RunRecord]

    @property
    def options(self) -> dict[str, str]:
        return self.runs[0].options

    @property
    def accuracies(self) -> list[Matrix]:
        return [run.accuracy for run in self.runs if run.accuracy is not None]

    @property
    def accs(self) -> list[float]:
        """ACC of each seed."""
        return [average_accuracy(accuracy) for accuracy in self.accuracies]

    @property
    def num_tasks(self) -> int:
        return len(self.accuracies[0])

    @property
    def setting_name(self) -> str:
        tasks = count_text(self.num_tasks, "task")
        parts = (data_set_name(self.runs[0]), self.options.get("protocol"), tasks, *self.unusual_labels)
        return ", ".join(part for part in parts if part)

    @property
    def is_offline(self) -> bool:
        """Whether it learned all tasks at once: no continual learner, but what one may be measured by."""
        return self.options.get("learner.name") == "offline"

    @property
    def unusual_labels(self) -> list[str]:
        """The options of missing or late labels."""
        usual = options_as_text({"labels": LABELS})  # every example has its label, at once
        return [f"{key} {value}" for key, value in self.options.items() if key in usual and value != usual[key]]

    @property
    def setting(self) -> tuple[object, ...]:
        """What compared rows have in common: the benchmark with its options, its tasks, the protocol, the labels."""
        shared = ("benchmark", "protocol", "labels")
        return self.num_tasks, *sorted(item for item in self.options.items() if item[0].split(".")[0] in shared)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that a report shows, and the definitions it uses."""

    rows: list[ReportRow]
    unfinished: list[RunRecord]
    spread: str = "std"
    fm: str = "paper"
    against: str | None = None  # the option that accuracy is shown against, beside the usual ones

    def settings(self) -> list[list[ReportRow]]:
        """The rows that may be compared with each other, in the order of their first row."""
        groups: dict[object, list[ReportRow]] = {}
        for row in self.rows:
            groups.setdefault(row.setting, []).append(row)
        return list(groups.values())


def compare(folders: Sequence[Path], spread: str = "std", fm: str = "paper", against: str | None = None) -> Comparison:
    """Reads all runs below the folders. All finished ones with the same options and as many tasks are one row."""
    runs = find_runs(folders)
    groups: dict[object, list[RunRecord]] = {}
    for run in runs:
        if run.accuracy is not None:
            groups.setdefault((len(run.accuracy), *sorted(run.options.items())), []).append(run)
    firsts = [same[0] for same in groups.values()]
    labels = distinct_labels([run.name for run in firsts], [run.options for run in firsts])
    rows = [ReportRow(i, label, same) for i, (label, same) in enumerate(zip(labels, groups.values(), strict=True))]
    return Comparison(rows, [run for run in runs if run.accuracy is None], spread, fm, against)


def by_accuracy(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """The highest ACC first; Offline last, which learns all tasks at once."""
    return sorted(rows, key=lambda row: (row.is_offline, -fmean(row.accs)))


def leading(rows: Sequence[ReportRow], count: int) -> list[ReportRow]:
    """So many of the highest ACC, and Offline, in the order of the report."""
    learners = sum(not row.is_offline for row in rows)
    first, last = by_accuracy(rows)[:learners][:count], by_accuracy(rows)[learners:]
    return sorted(first + last, key=lambda row: row.index)


def differing(options: Sequence[dict[str, str]]) -> list[str]:
    """The keys whose values are not the same in all mappings, in the order of their first occurrence.

    >>> differing([{"lr": "0.1", "size": "10"}, {"lr": "0.2", "size": "10", "n": "3"}])
    ['lr', 'n']
    """
    keys = dict.fromkeys(key for mapping in options for key in mapping)
    return [key for key in keys if len({mapping.get(key) for mapping in options}) > 1]


def mean_and_spread(values: Sequence[float], kind: str) -> tuple[float, float]:
    """Of the values of all seeds; the spread of a single one is NaN."""
    around = spread(values, kind)
    return fmean(values), math.nan if around is None else around


def values_over_seeds(row: ReportRow, vector: Callable[[Matrix], Vector], kind: str) -> tuple[Vector, Vector]:
    """Mean and spread over seeds of each number of a vector that is computed from an accuracy matrix."""
    seeds = zip(*(vector(accuracy).tolist() for accuracy in row.accuracies), strict=True)
    mean, around = np.array([mean_and_spread(values, kind) for values in seeds]).reshape(-1, 2).T
    return mean, around


def was_measured(row: ReportRow) -> bool:
    """Whether a run of it evaluated earlier tasks while it learned."""
    return any(run.log.stability for run in row.runs)


def measured(run: RunRecord) -> Matrix:
    """A row for each evaluation of earlier tasks, a column for each task; NaN where a task was not an earlier one."""
    assert run.accuracy is not None
    values = np.full((len(run.log.stability), len(run.accuracy)), np.nan)
    for line, accuracy in zip(values, run.log.stability.values(), strict=True):
        known = accuracy[: len(line)]
        line[: len(known)] = known
    return values


def mean_over_seeds(
    points: Iterable[tuple[int, float | Sequence[float] | Vector]],
) -> tuple[Vector, NDArray[np.float64]]:
    """The steps, or tasks, of the points of all seeds, and the mean of the values at each of them.

    >>> mean_over_seeds([(20, [1, 4]), (10, [0, 0]), (20, [3, 4])])
    (array([10., 20.]), array([[0., 0.],
           [2., 4.]]))
    """
    found: dict[int, list[Any]] = {}
    for step, values in points:
        found.setdefault(step, []).append(values)
    steps = sorted(found)
    return np.array(steps, dtype=np.float64), np.array([np.mean(found[step], axis=0) for step in steps])


def thinned(steps: Vector, values: NDArray[np.float64], lowest: bool = False) -> tuple[Vector, NDArray[np.float64]]:
    """At most MAX_POINTS points: neighbours become one, with their mean or, for worst cases, their lowest value."""
    starts = np.arange(0, len(steps), math.ceil(len(steps) / MAX_POINTS) or 1)
    counts = np.diff(starts, append=len(steps))
    middles = np.add.reduceat(steps, starts) / counts
    if lowest:
        return middles, np.fmin.reduceat(values, starts, axis=0)
    return middles, (np.add.reduceat(values, starts, axis=0).T / counts).T


def distinct_labels(names: Sequence[str], options: Sequence[dict[str, str]]) -> list[str]:
    """Each name, with the options that differ from those of equal names; where many differ, with a number.

    >>> distinct_labels(["er", "mir", "er"], [{"a.lr": "1"}, {}, {"a.lr": "2"}])
    ['er (lr=1)', 'mir', 'er (lr=2)']
    """
    labels = list(names)
    for name in set(names):
        same = [i for i, other in enumerate(names) if other == name]
        keys = differing([options[i] for i in same])
        short = [key.rpartition(".")[2] for key in keys]
        words = short if len(set(short)) == len(keys) else keys
        for number, i in enumerate(same, 1):
            values = [f"{word}={options[i].get(key, DASH)}" for word, key in zip(words, keys, strict=True)]
            if len(same) > 1:
                labels[i] += f" ({', '.join(values)})" if 1 <= len(keys) <= 3 else f" #{number}"
    return [printable(label) for label in labels]
