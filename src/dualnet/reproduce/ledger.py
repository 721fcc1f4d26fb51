"""The ledger: for each row our values, the published ones, their difference, a verdict and protocol differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualnet.experiments.manifest import FIELDS, differences
from dualnet.experiments.named_files import shipped_files
from dualnet.experiments.record import (
    EARLIER,
    IMAGES,
    RESULT_FILE,
    RunRecord,
    Scalar,
    compared_options,
    read_record,
    with_common_root,
)
from dualnet.files import read_yaml
from dualnet.metrics import sample_of
from dualnet.report.cells import DASH
from dualnet.report.rows import differing_keys
from dualnet.report.tables import METRICS, mean_cost
from dualnet.reproduce.table_file import FOLDER, PUBLISHED_FILE, TableRow
from dualnet.ttest import Difference, Sample, welch

MAX_SEEDS = 100  # largest number that `seeds_needed` tries
REPRODUCED, ABOVE, BELOW, INCONCLUSIVE = "reproduced", "above", "below", "inconclusive"
NOT_RUN, NOTHING_PUBLISHED = "not run", DASH
NO_SETTINGS = "settings not published"  # of a row with runs, whatever its figures
NOT_COMPARED = ("benchmark.root", "benchmark.cache", IMAGES, "name")  # where the images are, not how a run learns


@dataclass(frozen=True, slots=True)
class Published:
    """The published results of a row."""

    source: str | None = None  # label of the table and line in the LaTeX source
    runs: int | None = None
    metrics: dict[str, Sample] = field(default_factory=dict)  # some rows have no FM and LA
    protocol: dict[str, Any] = field(default_factory=dict)  # the manifest fields that the paper states
    not_published: str = ""  # options of the row that neither the paper nor the authors' code gives
    note: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a row: our value, the published one, and their comparison."""

    ours: Sample | None
    published: Sample | None
    margin: float
    difference: Difference | None
    verdict: str
    seeds_needed: int | None  # for another verdict than inconclusive


@dataclass(frozen=True, slots=True)
class Earlier:
    """Runs of a row that were replaced by others. They are shown, and are part of no mean or verdict of the row."""

    name: str  # of their folder: why they were replaced
    seeds: list[int]
    metrics: dict[str, Sample | None]
    differs: dict[str, tuple[Any, Any]]  # options and protocol fields that differ: theirs, those of the row


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the ledger, with the field names of ledger.json."""

    name: str
    runs_of: str  # the row whose runs are used; mostly the row itself
    verdict: str  # the verdict for ACC, or NO_SETTINGS
    seeds: list[int]  # finished
    seeds_asked: int  # number of seeds in the table
    metrics: dict[str, Metric]
    protocol_differs: dict[str, tuple[Any, Any]]  # fields in which our runs and the paper differ: ours, the paper's
    options_changed: dict[
        str, tuple[Scalar, Scalar]
    ]  # options in which our runs and the table differ: ours, the table's
    unknown: list[str]  # protocol fields that the paper does not state
    manifest: dict[str, Any]  # of our runs; empty if there are none
    cost: dict[str, float | None]
    earlier: list[Earlier]
    # The remaining fields describe the published values.
    source: str | None
    published_runs: int | None
    not_published: str
    note: str


@dataclass(frozen=True, slots=True)
class Ledger:
    titles: dict[str, str]  # by table
    entries: list[Entry]
    missing: dict[str, str]  # rows for which the paper has no value: the reason
    settings: str
    margin: float  # of the verdicts, in points


def make_metric(ours: Sample | None, published: Sample | None, margin: float) -> Metric:
    if ours is None or published is None:
        return Metric(ours, published, margin, None, NOT_RUN if ours is None else NOTHING_PUBLISHED, None)
    difference = welch(ours, published)
    verdict = verdict_of(difference, margin)
    needed = seeds_needed(ours, published, margin) if verdict == INCONCLUSIVE else None
    return Metric(ours, published, margin, difference, verdict, needed)


def verdict_of(difference: Difference, margin: float) -> str:
    """The verdict by the 95 % interval: reproduced if it lies within the margin, else above or below if it excludes 0.

    >>> verdict_of(Difference(1.0, 0.9, 8, 0.03), 2.0), verdict_of(Difference(1.0, 1.1, 8, 0.07), 2.0)
    ('reproduced', 'inconclusive')
    """
    if -margin <= difference.low and difference.high <= margin:
        return REPRODUCED
    return ABOVE if difference.low > 0 else BELOW if difference.high < 0 else INCONCLUSIVE


def seeds_needed(ours: Sample, published: Sample, margin: float) -> int | None:
    """The number of our seeds for a conclusive verdict if our mean and both standard deviations do not change.

    None if that takes more than MAX_SEEDS, or no number of seeds is enough.
    """
    std = published.std if ours.std is None else ours.std
    for size in range(ours.size + 1, MAX_SEEDS + 1):
        if verdict_of(welch(Sample(ours.mean, std, size), published), margin) != INCONCLUSIVE:
            return size
    return None


def make_ledger(rows: Sequence[TableRow], out: Path, settings: str, margin: float) -> Ledger:
    """The ledger of the finished runs below `out`."""
    published, missing = read_published()
    groups = {row.group for row in rows}
    entries = [make_entry(row, published.get(row.compared_with or row.name, Published()), out, margin) for row in rows]
    missing = {name: why for name, why in missing.items() if name.rpartition("/")[0] in groups}
    return Ledger({row.name.partition("/")[0]: row.title for row in rows}, entries, missing, settings, margin)


def read_published() -> tuple[dict[str, Published], dict[str, str]]:
    """Published results, and reasons for missing ones, both by the full name of the row."""
    content = read_yaml(next(path for path in shipped_files(FOLDER) if path.name == PUBLISHED_FILE))
    assert content["spread"] == "std"  # the meaning of the number after ±
    results: dict[str, Published] = {}
    missing: dict[str, str] = {}
    for table, facts in content["tables"].items():
        for name, group in facts["groups"].items():
            protocol, runs = content["protocols"][group["protocol"]], group["runs"]
            for row, written in group["rows"].items():
                values = {metric: written[metric] for metric in METRICS if metric in written}
                results[f"{table}/{name}/{row}"] = Published(
                    source=f"{facts['source']}, line {written['line']}",
                    runs=runs,
                    metrics={key: Sample(mean, std, runs) for key, (mean, std) in values.items()},
                    protocol={**protocol, **written.get("states", {})},
                    not_published=written.get("not_published", ""),
                    note=written.get("note", ""),
                )
            missing |= {f"{table}/{name}/{row}": why for row, why in group.get("not_available", {}).items()}
    return results, missing


def make_entry(row: TableRow, published: Published, out: Path, margin: float) -> Entry:
    runs = finished_runs(out / row.runs_of)
    metrics = {name: make_metric(our_sample(runs, name), published.metrics.get(name), margin) for name in METRICS}
    manifest = {key: value for key, value in runs[0].manifest.items() if key in FIELDS} if runs else {}
    not_published = "" if row.compared_with else published.not_published  # a row beside it has settings of its own
    return Entry(
        name=row.name,
        runs_of=row.runs_of,
        verdict=NO_SETTINGS if runs and not_published else metrics["ACC"].verdict,
        seeds=[int(run.seed) for run in runs],
        seeds_asked=row.num_seeds,
        metrics=metrics,
        protocol_differs=differences(manifest, published.protocol),
        options_changed=option_changes(runs[0].options, table_options(row)) if runs else {},
        unknown=[field for field in FIELDS if published.source and field not in published.protocol],
        manifest=manifest,
        cost=mean_cost(runs),
        earlier=earlier_sets(row, runs, out),
        source=published.source,
        published_runs=published.runs,
        not_published=not_published,
        note=published.note,
    )


def finished_runs(folder: Path) -> list[RunRecord]:
    """The finished runs in the folder of a row, in the order of seeds. Raises ValueError if they cannot be averaged."""
    finished = [path for path in seed_folders(folder) if (path / RESULT_FILE).exists()]
    runs = with_common_root([read_record(path) for path in finished])
    check_same_experiment(runs)
    return runs


def seed_folders(folder: Path) -> list[Path]:
    """The run folders of a row in the order of seeds; other names, such as seed-0.old, are ignored."""
    folders = [path for path in folder.glob("seed-*") if path.name.removeprefix("seed-").isdecimal()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("seed-")))


def check_same_experiment(runs: Sequence[RunRecord]) -> None:
    """Raises ValueError unless all seeds are of one experiment under one protocol, so that they can be averaged."""
    for run in runs[1:]:
        options = [key for key in differing_keys([runs[0].options, run.options]) if key != IMAGES]  # `split` covers it
        fields = list(differences(run.manifest, runs[0].manifest))  # an older manifest may lack a field
        if options or fields:
            what = ", ".join([*options, *fields][:3])
            raise ValueError(f"{run.folder}: differs from {runs[0].folder} in {what}; keep only one of them")


def our_sample(runs: Sequence[RunRecord], metric: str) -> Sample | None:
    """None if there is no run, or the metric is undefined, as FM is for a stream of one task."""
    values = [value for run in runs if (value := run.metrics.get(metric)) is not None]
    return sample_of(values) if values else None


def earlier_sets(row: TableRow, runs: Sequence[RunRecord], out: Path) -> list[Earlier]:
    """The replaced runs of a row, compared with its present ones or, if there are none, with its table."""
    folders = sorted(path for path in (out / row.runs_of / EARLIER).glob("[!.]*") if path.is_dir())
    if not folders:
        return []
    options, manifest = (runs[0].options, runs[0].manifest) if runs else (table_options(row), {})
    return [make_earlier(folder, options, manifest) for folder in folders]


def make_earlier(folder: Path, options: Mapping[str, Scalar], manifest: Mapping[str, Any]) -> Earlier:
    runs = finished_runs(folder)
    if not runs:
        raise ValueError(f"{folder}: has no finished run; replaced runs are kept as ROW/{EARLIER}/NAME/seed-S")
    return Earlier(
        name=folder.name,
        seeds=[int(run.seed) for run in runs],
        metrics={name: our_sample(runs, name) for name in METRICS},
        differs=option_changes(runs[0].options, options) | differences(runs[0].manifest, manifest),
    )


def table_options(row: TableRow) -> dict[str, Scalar]:
    return compared_options(row.experiment().mapping())


def option_changes(options: Mapping[str, Scalar], others: Mapping[str, Scalar]) -> dict[str, tuple[Scalar, Scalar]]:
    """Options in which two experiments differ, with both values; a dash for one that is missing."""
    keys = [key for key in differing_keys([options, others]) if key not in NOT_COMPARED]
    return {key: (options.get(key, DASH), others.get(key, DASH)) for key in keys}
