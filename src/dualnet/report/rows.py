"""Rows of the report: runs that differ only in their seed form a row, and rows of one setting are compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from dualnet.experiments.record import RunRecord, Scalar, option_text
from dualnet.metrics import Matrix
from dualnet.options import is_whole, shorten
from dualnet.report.cells import DASH, Number
from dualnet.report.find_runs import find_runs
from dualnet.report.stream_facts import data_set_name, setting_parts
from dualnet.text import escape

STREAM_DEFAULTS: dict[str, Scalar] = {  # of missing and late labels, and of blurry boundaries
    "labels.share": 1.0,
    "labels.drawn_per": "sample",
    "labels.delay": 0,
    "labels.delay_spread": 0,
    "blurry.share": 0.0,
    "blurry.disjoint": 0.0,
}
NUM_COLOURS = 7  # of the palette; the last is that of Offline
MAX_LINES = NUM_COLOURS - 1  # rows in a plot besides Offline: each has its own colour
MANY_ROWS = 8  # with more, names lose their common beginning, and the page is collapsed
SIZES = {"memory_slots": "slots", "width": "width"}  # fields of the manifest, and their columns


@dataclass(frozen=True, slots=True)
class Series:
    """A labelled data series. Its index determines its colour and marker in all plots of a setting."""

    index: int
    label: str


@dataclass(frozen=True, slots=True)
class ReportRow(Series):
    """The finished runs of one experiment, one per seed."""

    runs: list[RunRecord]
    prefix: str = ""  # what `label` leaves out: the common beginning of the names of a setting

    @property
    def name(self) -> str:
        return self.prefix + self.label

    @property
    def data_set(self) -> str:
        return data_set_name(self.runs[0])

    @property
    def options(self) -> dict[str, Scalar]:
        return self.runs[0].options

    @property
    def accuracies(self) -> list[Matrix]:
        return [run.accuracy for run in self.runs if run.accuracy is not None]

    @property
    def accs(self) -> list[float]:
        """ACC of each seed."""
        return [acc for run in self.runs if (acc := run.metrics["ACC"]) is not None]

    @property
    def num_tasks(self) -> int:
        return len(self.accuracies[0])

    @property
    def is_offline(self) -> bool:
        """Whether it learned all tasks jointly, so was evaluated at the end only: an upper baseline."""
        return self.num_tasks > 1 and bool(np.isnan(self.accuracies[0][:-1]).all())

    def size(self, field: str) -> Number:
        """A field of SIZES; none without a memory or a width."""
        size = self.runs[0].manifest.get(field)
        return Number(size if size and is_whole(size) else None, "label")

    @property
    def setting(self) -> tuple[object, ...]:
        """Rows are compared if they have the same benchmark options, number of tasks, protocol and stream options."""
        shared = [item for item in self.options.items() if item[0].split(".")[0] in ("benchmark", "protocol")]
        stream = {key: self.options.get(key, value) for key, value in STREAM_DEFAULTS.items()}
        if stream["labels.share"] == STREAM_DEFAULTS["labels.share"]:
            del stream["labels.drawn_per"]  # no label is missing
        return self.num_tasks, *sorted(shared), *stream.items()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows of a report, unfinished runs, and the definitions in use."""

    rows: list[ReportRow]
    unfinished: list[RunRecord]
    spread: str
    fm: str
    against: str | None  # option to plot accuracy against, in addition to trend.AXES

    @property
    def is_large(self) -> bool:
        return len(self.rows) > MANY_ROWS

    def settings(self) -> list[list[ReportRow]]:
        """The rows grouped by setting, in the order of first occurrence; those of a setting by decreasing ACC."""
        return by_setting(self.rows)

    @property
    def shared_parts(self) -> list[str]:
        """What all settings have in common, in words; of a single setting all."""
        settings = [setting_parts(rows[0].runs[0]) for rows in self.settings()]
        return [part for part in settings[0] if all(part in other for other in settings)] if settings else []

    def setting_names(self) -> list[str]:
        """Each setting in words, without what all have in common; a single one whole."""
        firsts, shared = [rows[0] for rows in self.settings()], self.shared_parts
        whole = [setting_parts(row.runs[0]) for row in firsts]
        own = [[part for part in parts if part not in shared] or parts for parts in whole]
        options = [{key: row.options[key] for key in row.options if key.startswith("benchmark.")} for row in firsts]
        return distinct_labels([", ".join(parts) for parts in own], options)


def compare(folders: Sequence[Path], spread: str = "std", fm: str = "paper", against: str | None = None) -> Comparison:
    """Read all runs below the folders. Finished runs with the same options and number of tasks form a row."""
    runs = find_runs(folders)
    groups: dict[object, list[RunRecord]] = {}
    for run in runs:
        if run.accuracy is not None:
            groups.setdefault((len(run.accuracy), *sorted(run.options.items())), []).append(run)
    firsts = [same[0] for same in groups.values()]
    labels = distinct_labels([run.name for run in firsts], [run.options for run in firsts])
    rows = [ReportRow(0, label, same) for label, same in zip(labels, groups.values(), strict=True)]
    ranked = [row for same in by_setting(rows) for row in _ranked(same)]
    if len(ranked) > MANY_ROWS:
        ranked = [row for same in by_setting(ranked) for row in _without_prefix(same)]
    return Comparison(ranked, [run for run in runs if run.accuracy is None], spread, fm, against)


def by_setting(rows: Sequence[ReportRow]) -> list[list[ReportRow]]:
    groups: dict[object, list[ReportRow]] = {}
    for row in rows:
        groups.setdefault(row.setting, []).append(row)
    return list(groups.values())


def _ranked(rows: Sequence[ReportRow]) -> Iterator[ReportRow]:
    """The rows by decreasing ACC. Their index is the rank; the first row of Offline has the last colour."""
    offline = MAX_LINES
    for rank, row in enumerate(by_accuracy(rows)):
        yield replace(row, index=offline if row.is_offline else rank)
        offline += NUM_COLOURS if row.is_offline else 0


def _without_prefix(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """The rows without the common beginning of their names, up to a slash, dash or underscore."""
    first, last = (pick(row.label for row in rows) for pick in (min, max))
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first) - 1)
    size = 1 + max(first.rfind(mark, 0, same) for mark in "/-_") if len(rows) > 1 else 0
    return [replace(row, label=row.label[size:], prefix=row.label[:size]) for row in rows]


def by_accuracy(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Rows by decreasing ACC; Offline comes last."""
    return sorted(rows, key=lambda row: (row.is_offline, -fmean(row.accs)))


def top_rows(rows: Sequence[ReportRow], count: int = MAX_LINES) -> list[ReportRow]:
    """The first `count` rows, and Offline."""
    best = [row for row in rows if not row.is_offline][:count]
    return best + [row for row in rows if row.is_offline]


def differing_sizes(rows: Sequence[ReportRow]) -> list[str]:
    """The fields of SIZES that differ between the rows that have them."""
    return [field for field in SIZES if len({row.size(field).value for row in rows} - {None}) > 1]


def differing_keys(options: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """The keys whose values differ between the mappings, in the order of first occurrence.

    >>> differing_keys([{"lr": 0.1, "size": 10}, {"lr": 0.2, "size": 10, "n": 3}])
    ['lr', 'n']
    """
    keys = dict.fromkeys(key for mapping in options for key in mapping)
    return [key for key in keys if len({mapping.get(key, DASH) for mapping in options}) > 1]


def has_stability(row: ReportRow) -> bool:
    """Whether any of its runs evaluated earlier tasks while learning (`stability_every`)."""
    return any(run.log.stability for run in row.runs)


def stability_matrix(run: RunRecord) -> Matrix:
    """Accuracy by evaluation and task, [evaluations, tasks]; NaN for tasks that were not yet finished."""
    assert run.accuracy is not None
    values = np.full((len(run.log.stability), len(run.accuracy)), np.nan)
    for line, accuracy in zip(values, run.log.stability.values(), strict=True):
        known = accuracy[: len(line)]
        line[: len(known)] = known
    return values


def distinct_labels(names: Sequence[str], options: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """The names, made unique by the options that differ between equal names or, if there are many, by a number.

    >>> distinct_labels(["er", "mir", "er"], [{"a.lr": 1}, {}, {"a.lr": 2}])
    ['er (lr=1)', 'mir', 'er (lr=2)']
    """
    labels = list(names)
    for name in set(names):
        namesakes = [i for i, other in enumerate(names) if other == name]
        keys = differing_keys([options[i] for i in namesakes])
        for number, i in enumerate(namesakes, 1):
            values = [f"{title}={value_text(options[i], key)}" for title, key in zip(shorten(keys), keys, strict=True)]
            if len(namesakes) > 1:
                labels[i] += f" ({', '.join(values)})" if 1 <= len(keys) <= 3 else f" #{number}"
    return [escape(label) for label in labels]


def value_text(options: Mapping[str, Scalar], key: str) -> str:
    """The value of an option, or a dash if it is not among them."""
    return option_text(options[key]) if key in options else DASH
