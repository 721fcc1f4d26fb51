"""Tables of the report: results, costs, trends, each run, options and environment; and notes on them."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from dualnet.experiments.record import RunRecord
from dualnet.metrics import average_forgetting, mean_and_spread, sample_of
from dualnet.report.cells import DASH, Cell, Number, Table
from dualnet.report.findings import significantly_best
from dualnet.report.rows import (
    SIZES,
    Comparison,
    ReportRow,
    differing_keys,
    differing_sizes,
    value_text,
)
from dualnet.report.stream_facts import chance
from dualnet.report.trend import Trend, trends
from dualnet.ttest import welch

METRICS = ("ACC", "FM", "LA")  # those of the paper
RESULT_METRICS = (*METRICS, "AIA")  # ACC comes first: a phone shows two columns
ANYTIME_METRICS = ("A_AUC", "ACC", "AIA")
STABILITY_METRICS = ("ACC", "min-ACC", "WC-ACC")
LOWER_IS_BETTER = ("FM",)
COSTS = {"forward": "samples", "backward": "samples", "seconds": "seconds", "memory": "bytes"}  # kinds of numbers
COST_HEADER = ("forward", "backward", "s / run", "peak memory")

SPREAD_MEANING = {
    "std": "standard deviation over seeds",
    "sem": "standard error of the mean over seeds",
    "ci95": "half-width of the 95 % confidence interval of the mean (Student's t)",
    "authors": "2 std / √runs, as the authors' code prints it",
}
FM_MEANING = {
    "paper": "best accuracy after any task but the last, minus the final one",
    "seen": "best accuracy after the task itself or a later one but the last, minus the final one",
    "all": "best accuracy after any task, minus the final one, rounded to 0.1 points",
}


def heading(metric: str) -> str:
    return f"{metric} {'↓' if metric in LOWER_IS_BETTER else '↑'}"


def results_table(rows: Sequence[ReportRow], comparison: Comparison) -> Table:
    """Metrics, differing sizes and cost of the rows of one setting, and a line for chance."""
    metrics, sizes = metrics_table(RESULT_METRICS, rows, comparison), differing_sizes(rows)
    header = [*metrics.header, *(SIZES[field] for field in sizes), *COST_HEADER]
    lines = [
        [*cells, *map(row.size, sizes), *cost_cells(mean_cost(row.runs))]
        for row, cells in zip(rows, metrics.rows, strict=True)
    ]
    if (guessing := chance(rows[0].runs[0])) is not None:
        lines.append(["chance", Number(guessing, "points"), *[Number(None)] * (len(header) - 2)])
    return Table(header, lines)


def metrics_table(metrics: Sequence[str], rows: Sequence[ReportRow], comparison: Comparison) -> Table:
    """The metrics of the rows in which any run has all of them, and the number of these runs."""
    measured = [(row, [run_metrics(run, comparison.fm) for run in row.runs]) for row in rows]
    complete = [(row, [run for run in runs if run.keys() >= {*metrics}]) for row, runs in measured]
    having = [(row, runs) for row, runs in complete if runs]
    rows = [row for row, _ in having]
    columns = [
        _metric_cells(rows, [[run[name] for run in runs] for _, runs in having], name, comparison) for name in metrics
    ]
    counts = [Number(len(runs)) for _, runs in having]
    lines = [[row.label, *cells] for row, *cells in zip(rows, *columns, counts, strict=True)]
    return Table(["experiment", *map(heading, metrics), "seeds"], lines)


def run_metrics(run: RunRecord, fm: str) -> dict[str, float]:
    """The metrics in the result of a run, NaN where undefined, with FM by one of the definitions."""
    assert run.accuracy is not None
    stored = {name: math.nan if value is None else value for name, value in run.metrics.items()}
    return stored | {"FM": average_forgetting(run.accuracy, fm)}


def _metric_cells(
    rows: Sequence[ReportRow], values: Sequence[Sequence[float]], metric: str, comparison: Comparison
) -> list[Number]:
    """Mean and spread of a metric; the best is marked if it is significantly better than all others but Offline."""
    cells = [mean_cell(seeds, comparison) for seeds in values]
    compared = [i for i, cell in enumerate(cells) if cell.is_known and not rows[i].is_offline]
    best = significantly_best({i: sample_of(values[i]) for i in compared}, metric not in LOWER_IS_BETTER)
    return [replace(cell, is_best=i == best) for i, cell in enumerate(cells)]


def mean_cell(values: Sequence[float], comparison: Comparison) -> Number:
    mean, spread = mean_and_spread(values, comparison.spread)
    return Number(mean, "points", spread)


def mean_cost(runs: Sequence[RunRecord]) -> dict[str, float | None]:
    """The cost of one run, mean over the seeds that recorded it; None if no seed did."""
    recorded = {
        "forward": [run.forward_samples for run in runs],  # images passed through a network
        "backward": [run.backward_samples for run in runs],  # images for which a gradient was computed
        "seconds": [run.seconds for run in runs],  # of all seeds that ran together on the device
    }
    known = {name: [value for value in values if value is not None] for name, values in recorded.items()}
    means = {name: fmean(values) if values else None for name, values in known.items()}
    return {**means, "memory": max((run.peak_memory for run in runs if run.peak_memory), default=None)}  # bytes


def cost_cells(cost: Mapping[str, float | None]) -> list[Number]:
    """The cells below COST_HEADER."""
    return [Number(cost[name] or None, kind) for name, kind in COSTS.items()]


def trend_tables(comparison: Comparison) -> dict[str, Table]:
    return {trend.title: trend_table(trend, comparison) for trend in trends(comparison)}


def trend_table(trend: Trend, comparison: Comparison) -> Table:
    """One line for each point of the plot; with two lines in the plot also their difference."""
    compared = len(trend.lines) == 2
    header = [trend.words, "experiment", "seeds", heading("ACC"), *["difference", "p"] * compared]
    lines: list[list[Cell]] = []
    for value in trend.values:
        points = [(line.label, line.accuracies[value]) for line in trend.lines if value in line.accuracies]
        for i, (label, seeds) in enumerate(points):
            difference = _difference(seeds, points[0][1]) if i == 1 else ["", ""]
            cells = [trend.value_text(value), label, Number(len(seeds)), mean_cell(seeds, comparison)]
            lines.append(cells + difference * compared)
    return Table(header, lines)


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> list[Cell]:
    """The difference of two means with its 95 % interval, and p by Welch's t-test unless both have a single seed."""
    if len(ours) == len(theirs) == 1:
        return [Number(ours[0] - theirs[0], "difference"), Number(None)]
    difference = welch(sample_of(ours), sample_of(theirs))
    interval = f" [{difference.low:+.2f}, {difference.high:+.2f}]"
    return [Number(difference.mean, "difference", note=interval), Number(difference.p, "p")]


def runs_table(comparison: Comparison) -> Table:
    """All finished runs, one per line."""
    metrics = (*RESULT_METRICS, "BWT")
    lines = []
    for row in (row for rows in comparison.settings() for row in rows):
        for run in row.runs:
            measured = run_metrics(run, comparison.fm)
            cells = [Number(measured[metric], "points") for metric in metrics]
            lines.append([row.name, _seed(run), *cells, *cost_cells(mean_cost([run])), _steps(run), str(run.folder)])
    return Table(["experiment", "seed", *metrics, *COST_HEADER, "steps", "folder"], lines)


def unfinished_table(comparison: Comparison) -> Table:
    """All runs without a result, one per line."""
    lines = [[run.name, _seed(run), _steps(run), str(run.folder)] for run in comparison.unfinished]
    return Table(["experiment", "seed", "last step", "folder"], lines)


def _seed(run: RunRecord) -> Number:
    return Number(int(run.seed), "label")


def _steps(run: RunRecord) -> Number:
    return Number(run.last_step, note=", diverged" if run.log.diverged is not None else "")


def options_table(comparison: Comparison, compared: bool) -> Table:
    """The options of each row that differ between rows of one setting, or all others that differ.

    A value that more than half of the rows have is in the first line, and only the others have theirs.
    """
    options = [{key: value_text(row.options, key) for key in row.options if key != "name"} for row in comparison.rows]
    keys = [key for key in differing_keys(options) if _differs(key, comparison) == compared]
    columns = {key: [own.get(key, DASH) for own in options] for key in keys}
    most = {key: Counter(values).most_common(1)[0] for key, values in columns.items()}
    usual = {key: value for key, (value, count) in most.items() if 2 * count > len(options)}
    texts = [", ".join(f"{key}={value}" for key, value in usual.items() if value != DASH)]
    for row in range(len(options)):
        own = {key: values[row] for key, values in columns.items()}
        texts.append(", ".join(f"{k}={value}" for k, value in own.items() if value != usual.get(k, DASH)))
    names = ["most experiments", *(row.name for row in comparison.rows)]
    return Table(["experiment", "options"], [[name, text] for name, text in zip(names, texts, strict=True) if text])


def _differs(option: str, comparison: Comparison) -> bool:
    """Whether the option differs between rows of one setting that have it."""
    groups = comparison.settings()
    return any(len({row.options[option] for row in rows if option in row.options}) > 1 for rows in groups)


def environment_table(comparison: Comparison) -> Table:
    """One column for each distinct environment, headed by its runs."""

    def runs_text(seeds: dict[str, list[str]]) -> str:
        return "; ".join(f"{label}: {'seed' if len(s) == 1 else 'seeds'} {', '.join(s)}" for label, s in seeds.items())

    groups: dict[tuple[tuple[str, str], ...], dict[str, list[str]]] = {}
    for row in comparison.rows:
        for run in row.runs:
            group = groups.setdefault(tuple(sorted(run.environment.items())), {})
            group.setdefault(row.name, []).append(run.seed)
    keys = dict.fromkeys(key for environment in groups for key, _ in environment)
    lines = [[key, *(dict(environment).get(key, DASH) for environment in groups)] for key in keys]
    headings = ["all runs"] if len(groups) == 1 else map(runs_text, groups.values())
    return Table(["environment", *headings], lines)


def appendix_tables(comparison: Comparison) -> dict[str, Table]:
    """Tables at the end of the report, by title, without empty ones."""
    tables = {
        "Options that differ": options_table(comparison, compared=True),
        "Other options that differ": options_table(comparison, compared=False),
        "Environment": environment_table(comparison),
        "Each run": runs_table(comparison),
    }
    return {title: table for title, table in tables.items() if table.rows}


def prefix_notes(comparison: Comparison) -> list[str]:
    """What the names of experiments leave out, if anything."""
    prefixes = dict.fromkeys(row.prefix for row in comparison.rows if row.prefix)
    return [f"Names are shown without their common beginning: {', '.join(prefixes)}"] if prefixes else []


def result_notes(comparison: Comparison) -> list[str]:
    """Definitions for the results table, one sentence each."""
    several = any(len(row.runs) > 1 for row in comparison.rows)
    notes = [
        *([f"± is the {SPREAD_MEANING[comparison.spread]}."] if several else []),
        "ACC: mean accuracy (%) over all tasks after the last one. LA: mean accuracy (%) on each task right after it.",
        f"FM ({comparison.fm}): {FM_MEANING[comparison.fm]}; mean over all tasks but the last, in points.",
        "AIA: average incremental accuracy (%), the mean over all tasks of the accuracy on the tasks so far.",
    ]
    if any(run.log.anytime for row in comparison.rows for run in row.runs):
        notes.append("A_AUC: mean accuracy (%) on the classes seen so far, every evaluate_every steps of the stream.")
    if any(row.runs[0].has_order_by_seed for row in comparison.rows):
        notes.append("With benchmark.order_seed seed, every seed has a class order of its own, and ± includes it.")
    if any("memory_slots" in differing_sizes(rows) for rows in comparison.settings()):
        notes.append("slots: of the episodic memory, in all.")
    notes.append("forward, backward: images through the networks while learning, each pass counted.")
    if any(len(trend.lines) == 2 for trend in trends(comparison)):
        notes.append(
            "difference: from the line above, in points, with the 95 % interval and p of Welch's t-test, not corrected."
        )
    if several and len(comparison.rows) > 1:
        notes.append(
            "Bold: significantly better than all other rows of the table (Welch's t-test over seeds, p < 0.05, "
            "not corrected for the number of comparisons)."
        )
    if offline := [row.label for row in comparison.rows if row.is_offline]:
        notes.append(f"{', '.join(offline)}: all tasks learned jointly, an upper baseline, not a continual learner.")
    repeated = [row.label for row in comparison.rows if len({run.seed for run in row.runs}) < len(row.runs)]
    return notes + [f"{label}: a seed occurs twice, so the spread is underestimated." for label in repeated]
