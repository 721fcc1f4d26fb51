"""Rows of the report: runs that differ only in their seed are one row, with a label and a place among the settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dualnet.metrics import FORGETTING, SPREADS, Matrix, Vector, spread, summary
from dualnet.runs.experiment import defaults
from dualnet.stream.labels import LabelsConfig

from .runs import Run, find_runs, flatten

DASH = "—"  # stands where there is no value


@dataclass(frozen=True, slots=True)
class Row:
    """The finished runs of one experiment, one for each seed."""

    index: int  # fixes the colour
    label: str
    runs: list[Run]

    @property
    def options(self) -> dict[str, str]:
        return self.runs[0].options

    @property
    def protocol(self) -> str:
        return self.options.get("protocol", "")

    @property
    def accuracies(self) -> list[Matrix]:
        return [run.accuracy for run in self.runs if run.accuracy is not None]

    @property
    def num_tasks(self) -> int:
        return len(self.accuracies[0])

    @property
    def setting_name(self) -> str:
        tasks = f"{self.num_tasks} task{'' if self.num_tasks == 1 else 's'}"
        parts = (self.options.get("benchmark.name"), self.protocol, tasks, *self.unusual_labels)
        return ", ".join(part for part in parts if part)

    @property
    def unusual_labels(self) -> list[str]:
        """The options of few or late labels; none where all labels are there, and in time."""
        usual = flatten({"labels": defaults(LabelsConfig)})
        return [f"{key} {self.options.get(key)}" for key in usual if self.options.get(key, usual[key]) != usual[key]]

    @property
    def setting(self) -> tuple[object, ...]:
        """What rows must share to be compared: the benchmark with its options, its tasks, the protocol, the labels."""
        shared = {k: v for k, v in self.options.items() if k.split(".")[0] in ("benchmark", "protocol", "labels")}
        return self.num_tasks, *sorted(shared.items())


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that a report shows, and by which definitions."""

    rows: list[Row]
    unfinished: list[Run]
    spread: str = "std"
    fm: str = "paper"
    repeated_seeds: list[str] = field(default_factory=list)  # rows in which a seed occurs twice

    def settings(self) -> list[list[Row]]:
        """The rows that may be compared with each other, in the order of their first row."""
        groups: dict[object, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.setting, []).append(row)
        return list(groups.values())


def compare(folders: Sequence[Path], spread: str = "std", fm: str = "paper") -> Comparison:
    """Reads all runs below the folders and groups them into rows."""
    if spread not in SPREADS:
        raise ValueError(f"unknown spread {spread!r}; choose one of {', '.join(SPREADS)}")
    if fm not in FORGETTING:
        raise ValueError(f"unknown definition of forgetting {fm!r}; choose one of {', '.join(FORGETTING)}")
    runs = find_runs(folders)
    rows = group([run for run in runs if run.accuracy is not None])
    return Comparison(rows, [run for run in runs if run.accuracy is None], spread, fm, _rows_with_a_seed_twice(rows))


def group(runs: Sequence[Run]) -> list[Row]:
    """One row for all runs with the same options."""
    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted(run.options.items())), []).append(run)
    for same in groups.values():
        _check_same_tasks(same)
    labels = _labels([same[0] for same in groups.values()])
    return [Row(i, label, same) for i, (label, same) in enumerate(zip(labels, groups.values(), strict=True))]


def differing(options: Sequence[dict[str, str]]) -> list[str]:
    """The keys whose values are not the same in all mappings, in the order of their first occurrence.

    >>> differing([{"lr": "0.1", "size": "10"}, {"lr": "0.2", "size": "10", "n": "3"}])
    ['lr', 'n']
    """
    keys = dict.fromkeys(key for mapping in options for key in mapping)
    return [key for key in keys if len({mapping.get(key) for mapping in options}) > 1]


def values_over_seeds(row: Row, vector: Callable[[Matrix], Vector], kind: str) -> tuple[Vector, Vector]:
    """Mean and spread over seeds of a vector that is read from each accuracy matrix; NaN where there is none."""
    values = np.stack([vector(accuracy) for accuracy in row.accuracies])
    spreads = [spread(column, kind) for column in values.T.tolist()]
    return values.mean(axis=0), np.array([math.nan if s is None else s for s in spreads])


def metric_values(row: Row, metric: str, fm: str) -> list[float]:
    """One metric for each seed of a row."""
    return [summary(accuracy, fm)[metric] for accuracy in row.accuracies]


def _labels(firsts: Sequence[Run]) -> list[str]:
    return told_apart([run.name for run in firsts], [run.options for run in firsts])


def told_apart(names: Sequence[str], options: Sequence[dict[str, str]]) -> list[str]:
    """Each name, with the options that tell it from its namesakes; with many of them, a number.

    >>> told_apart(["er", "mir", "er"], [{"a.lr": "1"}, {}, {"a.lr": "2"}])
    ['er (lr=1)', 'mir', 'er (lr=2)']
    """
    same = {name: [i for i, other in enumerate(names) if other == name] for name in names}
    return [_label(names[i], options, same[names[i]], i) for i in range(len(names))]


def _label(name: str, options: Sequence[dict[str, str]], namesakes: Sequence[int], i: int) -> str:
    if len(namesakes) == 1:
        return name
    keys = differing([options[other] for other in namesakes])
    if len(keys) > 3:
        return f"{name} #{namesakes.index(i) + 1}"
    short = [key.rsplit(".", 1)[-1] for key in keys]
    shown = short if len(set(short)) == len(keys) else keys
    marks = [f"{word}={options[i].get(key, DASH)}" for word, key in zip(shown, keys, strict=True)]
    return f"{name} ({', '.join(marks)})"


def _check_same_tasks(runs: Sequence[Run]) -> None:
    sizes = {len(run.accuracy): run for run in runs if run.accuracy is not None}
    if len(sizes) > 1:
        found = ", ".join(f"{size} in {run.folder}" for size, run in sizes.items())
        raise ValueError(f"the same experiment has different numbers of tasks: {found}; report them apart")


def _rows_with_a_seed_twice(rows: Sequence[Row]) -> list[str]:
    return [row.label for row in rows if len({run.seed for run in row.runs}) < len(row.runs)]
