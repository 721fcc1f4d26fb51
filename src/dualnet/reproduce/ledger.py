"""The ledger: each row's values and the published ones, their difference, a verdict, and where the protocols differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualnet.metrics import sample_of, summary
from dualnet.report.cost import mean_cost
from dualnet.report.rows import differing
from dualnet.report.tables import METRICS
from dualnet.runs.manifest import FIELDS, FORGETTING_DEFINITION, differences
from dualnet.runs.record import IMAGES, RESULT_FILE, RunRecord, compared_options, read_record, with_common_root
from dualnet.ttest import Difference, Sample, welch

from .published import Published, read_published
from .table import TableRow

MAX_SEEDS = 100  # that `seeds_needed` looks at
REPRODUCED, ABOVE, BELOW, INCONCLUSIVE = "reproduced", "above", "below", "inconclusive"
NOT_RUN, NOTHING_PUBLISHED = "not run", "—"
PLACES = ("benchmark.root", "benchmark.cache", IMAGES, "name")  # that say where things lie, and what lies there


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a row, on both sides."""

    ours: Sample | None
    published: Sample | None
    margin: float
    difference: Difference | None
    verdict: str
    seeds_needed: int | None  # to decide what is inconclusive


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the ledger, as ledger.json has it."""

    name: str
    runs_of: str  # the row whose runs they are
    verdict: str  # that of ACC
    seeds: list[int]  # finished
    seeds_asked: int
    metrics: dict[str, Metric]
    protocol_differs: dict[str, tuple[Any, Any]]  # fields that are not what the paper states: ours, the paper's
    options_changed: dict[str, tuple[str, str]]  # options that our runs have and the row has otherwise: theirs, its
    unknown: list[str]  # fields of the protocol that the paper leaves open
    manifest: dict[str, Any]  # of our runs; empty if there are none, or if they are older than manifests
    cost: dict[str, float | None]
    source: str | None  # these four: of what is published
    published_runs: int | None
    published_spread: str | None
    note: str


@dataclass(frozen=True, slots=True)
class Ledger:
    titles: dict[str, str]  # of the tables
    entries: list[Entry]
    missing: dict[str, str]  # rows that the paper names without a value, and why
    settings: str
    margin: float  # of a verdict, in points


def make_metric(ours: Sample | None, published: Sample | None, margin: float) -> Metric:
    if ours is None or published is None:
        return Metric(ours, published, margin, None, NOT_RUN if ours is None else NOTHING_PUBLISHED, None)
    difference = welch(ours, published)
    verdict = verdict_of(difference, margin)
    needed = seeds_needed(ours, published, margin) if verdict == INCONCLUSIVE else None
    return Metric(ours, published, margin, difference, verdict, needed)


def verdict_of(found: Difference, margin: float) -> str:
    """By the 95 % interval: within the margin, or without 0 and beyond the margin, or neither.

    >>> verdict_of(Difference(1.0, 0.9, 8, 0.03), 2.0), verdict_of(Difference(1.0, 1.1, 8, 0.07), 2.0)
    ('reproduced', 'inconclusive')
    """
    if -margin <= found.low and found.high <= margin:
        return REPRODUCED
    return ABOVE if found.low > 0 else BELOW if found.high < 0 else INCONCLUSIVE


def seeds_needed(ours: Sample, published: Sample, margin: float) -> int | None:
    """The number of our seeds that would decide what is inconclusive, if our mean and both standard deviations stay
    as they are. None: more than MAX_SEEDS, or no number."""
    std = published.std if ours.std is None else ours.std
    for size in range(ours.size + 1, MAX_SEEDS + 1):
        if verdict_of(welch(Sample(ours.mean, std, size), published), margin) != INCONCLUSIVE:
            return size
    return None


def make_ledger(rows: Sequence[TableRow], out: Path, settings: str, margin: float) -> Ledger:
    """From the run folders below out. Only finished runs count."""
    published, missing = read_published()
    groups = {row.group for row in rows}
    entries = [make_entry(row, published.get(row.beside or row.name, Published()), out, margin) for row in rows]
    missing = {name: why for name, why in missing.items() if name.rpartition("/")[0] in groups}
    return Ledger({row.name.partition("/")[0]: row.title for row in rows}, entries, missing, settings, margin)


def make_entry(row: TableRow, published: Published, out: Path, margin: float) -> Entry:
    finished = [folder for folder in seed_folders(out / row.home) if (folder / RESULT_FILE).exists()]
    runs = with_common_root([read_record(folder) for folder in finished])
    check_same(runs)
    metrics = {name: make_metric(our_sample(runs, name), published.metrics.get(name), margin) for name in METRICS}
    manifest = {key: value for key, value in runs[0].manifest.items() if key in FIELDS} if runs else {}
    return Entry(
        name=row.name,
        runs_of=row.home,
        verdict=metrics["ACC"].verdict,
        seeds=[int(run.seed) for run in runs],
        seeds_asked=row.num_seeds,
        metrics=metrics,
        protocol_differs=differences(manifest, published.protocol),
        options_changed=changed_options(row, runs),
        unknown=[field for field in FIELDS if published.source and field not in published.protocol],
        manifest=manifest,
        cost=mean_cost(runs),
        source=published.source,
        published_runs=published.runs,
        published_spread=published.spread,
        note=published.note,
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
    values = [summary(run.accuracy, FORGETTING_DEFINITION)[metric] for run in runs if run.accuracy is not None]
    if not values or values[0] != values[0]:  # NaN: a stream of one task has no FM
        return None
    return sample_of(values)


def changed_options(row: TableRow, runs: Sequence[RunRecord]) -> dict[str, tuple[str, str]]:
    """How our runs differ from the row as it stands in its table: options of a command line, other settings."""
    if not runs:
        return {}
    asked = compared_options(row.experiment().mapping())
    keys = [key for key in differing([runs[0].options, asked]) if key not in PLACES]
    return {key: (runs[0].options.get(key, "—"), asked.get(key, "—")) for key in keys}
