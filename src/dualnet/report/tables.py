"""Tables of the report as text, for the terminal, Markdown and the HTML page, and the costs in them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dualnet.experiments.record import RunRecord
from dualnet.metrics import average_accuracy, mean_and_spread, sample_of, seen_accuracy, stability_summary, summary
from dualnet.report.data_set import chance
from dualnet.report.findings import significantly_best
from dualnet.report.rows import (
    DASH,
    SIZES,
    Comparison,
    ReportRow,
    differing_keys,
    differing_sizes,
    stability_matrix,
)
from dualnet.report.trend import Trend, trends
from dualnet.ttest import welch

METRICS = {"ACC": True, "FM": False, "LA": True}  # those of the paper, and whether higher is better
ALL_METRICS = METRICS | {"AIA": True}
RESULT_HEADER = ["experiment", "ACC ↑", "FM ↓", "LA ↑", "AIA ↑", "seeds"]  # ACC comes first: a phone shows two columns

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


class Best(str):
    """A cell that is significantly better than all others of its column, shown in bold."""


@dataclass(frozen=True, slots=True)
class TextTable:
    header: list[str]
    rows: list[list[str]]  # a row with an empty first cell belongs to the row above
    numeric: Sequence[int] = ()  # indices of right-aligned columns


def results_table(rows: Sequence[ReportRow], comparison: Comparison) -> TextTable:
    """Metrics, differing sizes and cost of the rows of one setting, and a line for chance."""
    sizes = differing_sizes(rows)
    header = [*RESULT_HEADER, *(SIZES[field] for field in sizes), *sample_header(comparison), "s / run", "peak memory"]
    summaries = [[summary(accuracy, comparison.fm) for accuracy in row.accuracies] for row in rows]
    columns = [
        _metric_cells(rows, [[one[metric] for one in seeds] for seeds in summaries], higher, comparison)
        for metric, higher in ALL_METRICS.items()
    ]
    lines = [
        [row.label, *metrics, str(len(row.runs)), *map(row.size, sizes), *_costs(row.runs, comparison)]
        for row, *metrics in zip(rows, *columns, strict=True)
    ]
    if (guessing := chance(rows[0].runs[0])) is not None:
        lines.append(["chance", number_text(guessing), *[DASH] * (len(header) - 2)])
    return TextTable(header, lines, numeric=range(1, len(header)))


def sample_header(comparison: Comparison) -> list[str]:
    """Columns for images through the networks, unless no run counted them, as in older versions."""
    counted = any(run.forward_samples for row in comparison.rows for run in row.runs)
    return ["fwd", "bwd"] if counted else []


def _metric_cells(
    rows: Sequence[ReportRow], values: Sequence[Sequence[float]], higher_is_better: bool, comparison: Comparison
) -> list[str]:
    """Mean and spread of a metric; the best is marked if it is significantly better than all others but Offline."""
    texts = [_mean_text(seeds, comparison) for seeds in values]
    compared = [i for i, text in enumerate(texts) if text != DASH and not rows[i].is_offline]
    best = significantly_best({i: sample_of(values[i]) for i in compared}, higher_is_better)
    return [Best(text) if i == best else text for i, text in enumerate(texts)]


def _mean_text(values: Sequence[float], comparison: Comparison) -> str:
    mean, spread = map(number_text, mean_and_spread(values, comparison.spread))
    return DASH if mean == DASH else f"{mean} ± {spread}"


def _costs(runs: Sequence[RunRecord], comparison: Comparison) -> list[str]:
    return cost_texts(mean_cost(runs))[0 if sample_header(comparison) else 2 :]


def stability_table(rows: Sequence[ReportRow], comparison: Comparison) -> TextTable:
    """The final accuracy and the lowest accuracy during the stream, of the rows that recorded it."""
    return _recorded_table(["ACC ↑", "min-ACC ↑", "WC-ACC ↑"], _worst_cases, rows, comparison)


def _worst_cases(run: RunRecord) -> list[float]:
    if run.accuracy is None or not run.log.stability:
        return []
    return [average_accuracy(run.accuracy), *stability_summary(run.accuracy, stability_matrix(run)).values()]


def anytime_table(rows: Sequence[ReportRow], comparison: Comparison) -> TextTable:
    """The accuracy during the stream, at the end, and after the tasks, of the rows that recorded it."""
    return _recorded_table(["A_AUC ↑", "ACC ↑", "AIA ↑"], _anytime_accuracies, rows, comparison)


def _anytime_accuracies(run: RunRecord) -> list[float]:
    if run.accuracy is None or not run.log.anytime:
        return []
    return [fmean(run.log.anytime.values()), average_accuracy(run.accuracy), seen_accuracy(run.accuracy).mean()]


def _recorded_table(
    metrics: list[str],
    values_of: Callable[[RunRecord], list[float]],
    rows: Sequence[ReportRow],
    comparison: Comparison,
) -> TextTable:
    """Metrics that only some runs have, and the number of these runs: `values_of` is empty for the others."""
    found = [(row, list(filter(None, map(values_of, row.runs)))) for row in rows]
    rows, values = [row for row, runs in found if runs], [zip(*runs, strict=True) for _, runs in found if runs]
    columns = [_metric_cells(rows, column, True, comparison) for column in zip(*values, strict=True)]
    counts = [str(len(runs)) for _, runs in found if runs]
    lines = [[row.label, *cells] for row, *cells in zip(rows, *columns, counts, strict=True)]
    return TextTable(["experiment", *metrics, "seeds"], lines, numeric=range(1, len(metrics) + 2))


def _mixed_intervals(row: ReportRow) -> Iterator[str]:
    intervals = sorted({run.experiment.get("evaluate_every", 0) for run in row.runs if run.log.anytime})
    if len(intervals) > 1:
        yield f"{row.label}: A_AUC is the mean of runs with evaluate_every {' and '.join(map(str, intervals))}."


def trend_tables(comparison: Comparison) -> dict[str, TextTable]:
    return {trend.title: trend_table(trend, comparison) for trend in trends(comparison)}


def trend_table(trend: Trend, comparison: Comparison) -> TextTable:
    """One line for each point of the plot; with two lines in the plot also their difference."""
    compared = len(trend.lines) == 2
    header = [trend.option, "experiment", "seeds", "ACC ↑", *["difference", "p"] * compared]
    lines = []
    for value in trend.values:
        points = [(line.label, line.accuracies[value]) for line in trend.lines if value in line.accuracies]
        for i, (label, seeds) in enumerate(points):
            difference = _difference(seeds, points[0][1]) if i == 1 else ["", ""]
            cells = [f"{value:.6g}", label, str(len(seeds)), _mean_text(seeds, comparison)]
            lines.append(cells + difference * compared)
    return TextTable(header, lines, numeric=range(2, len(header)))


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> list[str]:
    """The difference of two means with its 95 % interval, and p by Welch's t-test unless both have a single seed."""
    if len(ours) == len(theirs) == 1:
        return [f"{ours[0] - theirs[0]:+.2f}", DASH]
    found = welch(sample_of(ours), sample_of(theirs))
    return [f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]", found.p_text]


def runs_table(comparison: Comparison) -> TextTable:
    """All finished runs, one per line."""
    costs = [*sample_header(comparison), "s", "peak memory"]
    header = ["experiment", "seed", *ALL_METRICS, "BWT", *costs, "steps", "folder"]
    lines = []
    for row in (row for rows in comparison.settings() for row in rows):
        for run, accuracy in zip(row.runs, row.accuracies, strict=True):
            metrics = map(number_text, summary(accuracy, comparison.fm).values())
            lines.append([row.label, run.seed, *metrics, *_costs([run], comparison), _steps_text(run), str(run.folder)])
    return TextTable(header, lines, numeric=range(1, len(header) - 1))


def unfinished_table(comparison: Comparison) -> TextTable:
    """All runs without a result, one per line."""
    lines = [[run.name, run.seed, _steps_text(run), str(run.folder)] for run in comparison.unfinished]
    return TextTable(["experiment", "seed", "last step", "folder"], lines, numeric=range(1, 3))


def options_table(comparison: Comparison, compared: bool) -> TextTable:
    """The options that differ between rows that are compared with each other, or all others that differ.

    Rows that do not have an option are not compared in it.
    """
    mappings = [{k: v for k, v in row.options.items() if k != "name"} for row in comparison.rows]
    groups = [[row.options for row in rows] for rows in comparison.settings()]
    lines = []
    for key in differing_keys(mappings):
        values = [{options[key] for options in group if key in options} for group in groups]
        if any(len(found) > 1 for found in values) == compared:
            lines.append([key, *(mapping.get(key, DASH) for mapping in mappings)])
    return TextTable(["option", *(row.label for row in comparison.rows)], lines)


def environment_table(comparison: Comparison) -> TextTable:
    """One column for each distinct environment, headed by its runs."""

    def runs_text(seeds: dict[str, list[str]]) -> str:
        return "; ".join(f"{label}: {'seed' if len(s) == 1 else 'seeds'} {', '.join(s)}" for label, s in seeds.items())

    groups: dict[tuple[tuple[str, str], ...], dict[str, list[str]]] = {}
    for row in comparison.rows:
        for run in row.runs:
            group = groups.setdefault(tuple(sorted(run.environment.items())), {})
            group.setdefault(row.label, []).append(run.seed)
    keys = dict.fromkeys(key for environment in groups for key, _ in environment)
    lines = [[key, *(dict(environment).get(key, DASH) for environment in groups)] for key in keys]
    headings = ["all runs"] if len(groups) == 1 else map(runs_text, groups.values())
    return TextTable(["environment", *headings], lines)


def appendix_tables(comparison: Comparison) -> dict[str, TextTable]:
    """Tables at the end of the report, by title, without empty ones."""
    tables = {
        "Options that differ": options_table(comparison, compared=True),
        "Other options that differ": options_table(comparison, compared=False),
        "Environment": environment_table(comparison),
        "Each run": runs_table(comparison),
    }
    return {title: table for title, table in tables.items() if table.rows}


def result_notes(comparison: Comparison) -> list[str]:
    """Definitions for the results table, one sentence each."""
    notes = [
        f"± is the {SPREAD_MEANING[comparison.spread]}.",
        "ACC: mean accuracy (%) over all tasks after the last one. LA: mean accuracy (%) on each task right after it.",
        f"FM ({comparison.fm}): {FM_MEANING[comparison.fm]}; mean over all tasks but the last, in points.",
        "AIA: average incremental accuracy (%), the mean over all tasks of the accuracy on the tasks so far.",
    ]
    if any(run.log.anytime for row in comparison.rows for run in row.runs):
        notes.append("A_AUC: mean accuracy (%) on the classes seen so far, every evaluate_every steps of the stream.")
        notes += [note for row in comparison.rows for note in _mixed_intervals(row)]
    if any(row.runs[0].has_order_by_seed for row in comparison.rows):
        notes.append("With benchmark.order_seed seed, every seed has a class order of its own, and ± includes it.")
    if any("memory_slots" in differing_sizes(rows) for rows in comparison.settings()):
        notes.append("slots: of the episodic memory, in all.")
    if sample_header(comparison):
        notes.append("fwd, bwd: images through the networks while learning, forward and backward; each pass counts.")
    if any(len(trend.lines) == 2 for trend in trends(comparison)):
        notes.append(
            "difference: from the line above, in points, with the 95 % interval and p of Welch's t-test, not corrected."
        )
    if any(len(row.runs) > 1 for row in comparison.rows) and len(comparison.rows) > 1:
        notes.append(
            "Bold: significantly better than all other rows of the table (Welch's t-test over seeds, p < 0.05, "
            "not corrected for the number of comparisons)."
        )
    if offline := [row.label for row in comparison.rows if row.is_offline]:
        notes.append(f"{', '.join(offline)}: all tasks learned jointly, an upper baseline, not a continual learner.")
    repeated = [row.label for row in comparison.rows if len({run.seed for run in row.runs}) < len(row.runs)]
    return notes + [f"{label}: a seed occurs twice, so the spread is underestimated." for label in repeated]


def _steps_text(run: RunRecord) -> str:
    return (DASH if run.last_step is None else f"{run.last_step:,}") + ", diverged" * run.log.diverged


def number_text(value: float) -> str:
    """Two decimals, or a dash if there is no value. Never minus zero.

    >>> number_text(71.804), number_text(-0.001), number_text(float("nan"))
    ('71.80', '0.00', '—')
    """
    return f"{value + 0.0:z.2f}" if math.isfinite(value) else DASH


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


def cost_texts(cost: Mapping[str, float | None]) -> list[str]:
    samples = [samples_text(cost["forward"]), samples_text(cost["backward"])]
    return [*samples, seconds_text(cost["seconds"]), memory_text(cost["memory"])]


def seconds_text(seconds: float | None) -> str:
    """Seconds, with one decimal below 100.

    >>> seconds_text(9.27), seconds_text(4321.7), seconds_text(None)
    ('9.3', '4,322', '—')
    """
    if seconds is None or not math.isfinite(seconds):
        return DASH
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:,.0f}"


def samples_text(number: float | None) -> str:
    """A number of images with the suffix k, M or G if it is large.

    >>> samples_text(1_248_300), samples_text(31_260), samples_text(950), samples_text(None)
    ('1.25M', '31.3k', '950', '—')
    """
    if not number:
        return DASH
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * unit:
            return f"{number / unit:#.3g}".rstrip(".") + letter
    return f"{number:.0f}"


def memory_text(num_bytes: float | None) -> str:
    """Bytes in MiB or GiB.

    >>> memory_text(3 * 2**30), memory_text(200 * 2**20), memory_text(None)
    ('3.0 GiB', '200 MiB', '—')
    """
    if not num_bytes:
        return DASH
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
