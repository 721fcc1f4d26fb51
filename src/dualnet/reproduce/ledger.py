"""The ledger: each row's values and the published ones, their difference, a verdict, and where the protocols differ."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualnet.metrics import spread, summary
from dualnet.report.cost import MeanCost, mean_cost
from dualnet.report.rows import differing
from dualnet.runs.manifest import FIELDS, FORGETTING, differences
from dualnet.runs.record import IMAGES, RESULT_FILE, RunRecord, compared_options, read_record, with_one_root
from dualnet.ttest import Difference, Sample, welch

from .published import METRICS, Published, read_published
from .table import ResultTable, TableRow

MARGIN = 2.0  # points, by default
MAX_SEEDS = 100  # that `seeds_needed` looks at
REPRODUCED, ABOVE, BELOW, INCONCLUSIVE = "reproduced", "above", "below", "inconclusive"
NOT_RUN, NOTHING_PUBLISHED = "not run", "—"
PLACES = ("benchmark.root", "benchmark.cache", IMAGES, "name")  # that say where things lie, and what lies there


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a row, on both sides."""

    ours: Sample | None
    published: Sample | None
    margin: float = MARGIN

    @property
    def difference(self) -> Difference | None:
        return None if self.ours is None or self.published is None else welch(self.ours, self.published)

    @property
    def verdict(self) -> str:
        if self.ours is None:
            return NOT_RUN
        return NOTHING_PUBLISHED if self.difference is None else verdict_of(self.difference, self.margin)

    @property
    def seeds_needed(self) -> int | None:
        """The number of our seeds that would decide what is inconclusive, if our mean and both standard deviations stay
        as they are. None: more than MAX_SEEDS, or no number."""
        if self.ours is None or self.published is None:
            return None
        std = self.published.std if self.ours.std is None else self.ours.std
        for size in range(self.ours.size + 1, MAX_SEEDS + 1):
            found = welch(Sample(self.ours.mean, std, size), self.published)
            if verdict_of(found, self.margin) != INCONCLUSIVE:
                return size
        return None


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the ledger."""

    row: TableRow
    published: Published | None
    seeds: list[int]  # finished
    metrics: dict[str, Metric]
    manifest: dict[str, Any]  # of our runs; empty if there are none, or if they are older than manifests
    changed: dict[str, tuple[str, str]]  # options that our runs have and the row has otherwise: theirs, the row's
    cost: MeanCost

    @property
    def verdict(self) -> str:
        """That of ACC."""
        return self.metrics["ACC"].verdict

    @property
    def differs(self) -> dict[str, tuple[Any, Any]]:
        """The fields of the protocol that are not what the paper states: ours, the paper's."""
        return differences(self.manifest, self.published.protocol) if self.published else {}

    @property
    def unknown(self) -> list[str]:
        return self.published.unknown if self.published else []


@dataclass(frozen=True, slots=True)
class Ledger:
    tables: list[ResultTable]
    entries: list[Entry]
    missing: dict[str, str]  # rows that the paper names without a value, and why
    settings: str
    margin: float  # of a verdict, in points


def verdict_of(found: Difference, margin: float) -> str:
    """By the 95 % interval: within the margin, or without 0 and beyond the margin, or neither.

    >>> verdict_of(Difference(1.0, 0.9, 8, 0.03), 2.0), verdict_of(Difference(1.0, 1.1, 8, 0.07), 2.0)
    ('reproduced', 'inconclusive')
    """
    if -margin <= found.low and found.high <= margin:
        return REPRODUCED
    return ABOVE if found.low > 0 else BELOW if found.high < 0 else INCONCLUSIVE


def make_ledger(
    tables: Sequence[ResultTable], rows: Sequence[TableRow], out: Path, settings: str, margin: float = MARGIN
) -> Ledger:
    """From the run folders below out. Only finished runs count."""
    published, missing = read_published()
    groups = {row.group for row in rows}
    entries = [make_entry(row, published.get(row.name), out, margin) for row in rows]
    missing = {name: why for name, why in missing.items() if name.rpartition("/")[0] in groups}
    return Ledger(list(tables), entries, missing, settings, margin)


def make_entry(row: TableRow, published: Published | None, out: Path, margin: float) -> Entry:
    finished = [folder for folder in seed_folders(out / row.home) if (folder / RESULT_FILE).exists()]
    runs = with_one_root([read_record(folder) for folder in finished])
    check_same(runs)
    return Entry(
        row=row,
        published=published,
        seeds=[int(run.seed) for run in runs],
        metrics={
            name: Metric(our_sample(runs, name), published.sample(name) if published else None, margin)
            for name in METRICS
        },
        manifest={key: value for key, value in runs[0].manifest.items() if key in FIELDS} if runs else {},
        changed=changed_options(row, runs),
        cost=mean_cost(runs),
    )


def seed_folders(home: Path) -> list[Path]:
    """By seed. A copy that somebody keeps beside them, such as seed-0.old, is not one more seed."""
    folders = [path for path in home.glob("seed-*") if path.name.removeprefix("seed-").isdecimal()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("seed-")))


def check_same(runs: Sequence[RunRecord]) -> None:
    """Seeds are averaged only if they are seeds of one experiment under one protocol."""
    for run in runs[1:]:
        options = [key for key in differing([runs[0].options, run.options]) if key != IMAGES]  # the split tells them
        fields = list(differences(run.manifest, runs[0].manifest))  # an older manifest may lack a field
        if options or fields:
            what = ", ".join([*options, *fields][:3])
            raise ValueError(f"{run.folder}: differs from {runs[0].folder} in {what}; keep only one of them")


def our_sample(runs: Sequence[RunRecord], metric: str) -> Sample | None:
    values = [summary(run.accuracy, FORGETTING)[metric] for run in runs if run.accuracy is not None]
    if not values or values[0] != values[0]:  # NaN: a stream of one task has no FM
        return None
    return Sample(statistics.fmean(values), spread(values), len(values))


def changed_options(row: TableRow, runs: Sequence[RunRecord]) -> dict[str, tuple[str, str]]:
    """How our runs differ from the row as it stands in its table: options of a command line, other settings."""
    if not runs:
        return {}
    asked = compared_options(row.experiment().mapping())
    keys = [key for key in differing([runs[0].options, asked]) if key not in PLACES]
    return {key: (runs[0].options.get(key, "—"), asked.get(key, "—")) for key in keys}
