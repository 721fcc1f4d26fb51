"""Tables of the report as text, for the terminal, Markdown and the page; and how figures are written."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dualnet.metrics import average_accuracy, sample_of, stability_summary, summary
from dualnet.runs.record import RunRecord
from dualnet.ttest import welch

from .cost import cost_texts, mean_cost
from .data_set import chance
from .findings import ahead_of_all
from .rows import DASH, Comparison, ReportRow, differing_keys, mean_and_spread, measured, was_measured
from .trend import Trend, trends

METRICS = {"ACC": True, "FM": False, "LA": True}  # whether higher is better
RESULT_HEADER = ["experiment", "ACC ↑", "FM ↓", "LA ↑", "seeds"]  # ACC first: a phone shows two columns
STABILITY_HEADER = ["experiment", "ACC ↑", "min-ACC ↑", "WC-ACC ↑"]

SPREAD_WORDS = {
    "std": "standard deviation over seeds",
    "sem": "standard error of the mean over seeds",
    "ci95": "half-width of the 95 % interval of the mean (Student t)",
    "authors": "2 std / √runs, as the authors' code prints it",
}
FM_WORDS = {
    "paper": "best accuracy after any task but the last, minus the final one",
    "seen": "best accuracy after the task itself or a later one but the last, minus the final one",
    "all": "best accuracy after any task, minus the final one, rounded to 0.1 points",
}


class Best(str):
    """The best of the values that may be compared, ahead of all others by more than the spread: bold."""


@dataclass(frozen=True, slots=True)
class TextTable:
    header: list[str]
    rows: list[list[str]]  # one without a name belongs to the one above
    numeric: Sequence[int]  # the columns that are aligned to the right


def results_table(rows: Sequence[ReportRow], comparison: Comparison) -> TextTable:
    """One line for each row that may be compared: mean and spread of the metrics, and what they cost."""
    header = [*RESULT_HEADER, *sample_header(comparison), "s / run", "memory"]
    return TextTable(header, list(_result_lines(rows, comparison, len(header))), numeric=range(1, len(header)))


def sample_header(comparison: Comparison) -> list[str]:
    """Columns for the images that went through the networks; runs of older versions did not count them."""
    counted = any(run.forward_samples for row in comparison.rows for run in row.runs)
    return ["fwd", "bwd"] if counted else []


def _result_lines(rows: Sequence[ReportRow], comparison: Comparison, width: int) -> Iterator[list[str]]:
    """The lines of rows that may be compared; the last one is what guessing would reach."""
    columns = [
        _compared(
            rows, [[summary(a, comparison.fm)[metric] for a in row.accuracies] for row in rows], higher, comparison
        )
        for metric, higher in METRICS.items()
    ]
    for row, *metrics in zip(rows, *columns, strict=True):
        yield [row.label, *metrics, str(len(row.runs)), *_costs(row.runs, comparison)]
    if (guessing := chance(rows[0].runs[0])) is not None:
        yield ["chance", number_text(guessing), *[DASH] * (width - 2)]


def _compared(
    rows: Sequence[ReportRow], values: Sequence[Sequence[float]], higher_is_better: bool, comparison: Comparison
) -> list[str]:
    """Mean and spread for rows that may be compared; the best is marked if it is ahead of all others but Offline."""
    figures = [tuple(map(number_text, mean_and_spread(seeds, comparison.spread))) for seeds in values]
    texts = [DASH if mean == DASH else f"{mean} ± {around}" for mean, around in figures]
    known = [i for i, (mean, _) in enumerate(figures) if mean != DASH and not rows[i].is_offline]
    samples = {i: sample_of(values[i]) for i in known}
    best = ahead_of_all(samples, higher_is_better)
    return [Best(text) if i == best else text for i, text in enumerate(texts)]


def _costs(runs: Sequence[RunRecord], comparison: Comparison) -> list[str]:
    return cost_texts(mean_cost(runs))[0 if sample_header(comparison) else 2 :]


def stability_table(rows: Sequence[ReportRow], comparison: Comparison) -> TextTable:
    """The accuracy at the end and the lowest on the way, of the rows where it was measured."""
    rows = [row for row in rows if was_measured(row)]
    values = [zip(*(_worst_cases(run) for run in row.runs if run.log.stability), strict=True) for row in rows]
    columns = [_compared(rows, of_rows, True, comparison) for of_rows in zip(*values, strict=True)]
    lines = [[row.label, *cells] for row, *cells in zip(rows, *columns, strict=True)]
    return TextTable(STABILITY_HEADER, lines, numeric=range(1, len(STABILITY_HEADER)))


def _worst_cases(run: RunRecord) -> list[float]:
    assert run.accuracy is not None
    return [average_accuracy(run.accuracy), *stability_summary(run.accuracy, measured(run)).values()]


def trend_tables(comparison: Comparison) -> dict[str, TextTable]:
    return {trend.title: _trend_table(trend, comparison) for trend in trends(comparison)}


def _trend_table(trend: Trend, comparison: Comparison) -> TextTable:
    """One line for each value of the option and each line of the plot; of two, their difference."""
    compared = len(trend.lines) == 2
    header = [trend.option, "experiment", "seeds", "ACC ↑", *["difference", "p"] * compared]
    lines = []
    for value in trend.values:
        having = [line for line in trend.lines if value in line.accuracies]
        seeds = [line.accuracies[value] for line in having]
        for i, line in enumerate(having):
            mean, around = map(number_text, mean_and_spread(seeds[i], comparison.spread))
            difference = _difference(seeds[1], seeds[0]) if i == 1 else ["", ""]
            cells = [f"{value:.6g}", line.label, str(len(seeds[i])), f"{mean} ± {around}"]
            lines.append(cells + difference * compared)
    return TextTable(header, lines, numeric=range(2, len(header)))


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> list[str]:
    """Of two means, with its 95 % interval and p by Welch's test; two single seeds cannot be tested."""
    if len(ours) == len(theirs) == 1:
        return [f"{ours[0] - theirs[0]:+.2f}", DASH]
    found = welch(sample_of(ours), sample_of(theirs))
    return [f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]", found.p_text]


def runs_table(comparison: Comparison) -> TextTable:
    """One line for each finished run."""
    header = ["experiment", "seed", *METRICS, "BWT", *sample_header(comparison), "s", "memory", "steps", "folder"]
    rows = [row for rows in comparison.settings() for row in rows]
    lines = [_run_line(row.label, run, comparison) for row in rows for run in row.runs]
    return TextTable(header, lines, numeric=range(1, len(header) - 1))


def _run_line(label: str, run: RunRecord, comparison: Comparison) -> list[str]:
    assert run.accuracy is not None
    metrics = map(number_text, summary(run.accuracy, comparison.fm).values())
    return [label, run.seed, *metrics, *_costs([run], comparison), _steps_text(run), str(run.folder)]


def unfinished_table(comparison: Comparison) -> TextTable:
    """One line for each run without a result."""
    lines = [[run.name, run.seed, _steps_text(run), str(run.folder)] for run in comparison.unfinished]
    return TextTable(["experiment", "seed", "last step", "folder"], lines, numeric=range(1, 3))


def options_table(comparison: Comparison, only: bool | None = None) -> TextTable:
    """The options that differ between the rows; with `only`, those that matter, or the others."""
    mappings = [{k: v for k, v in row.options.items() if k != "name"} for row in comparison.rows]
    keys = [key for key in differing_keys(mappings) if only is None or _matters(key, comparison) == only]
    lines = [[key, *(mapping.get(key, DASH) for mapping in mappings)] for key in keys]
    return TextTable(["option", *(row.label for row in comparison.rows)], lines, numeric=range(0))


def _matters(option: str, comparison: Comparison) -> bool:
    """Whether rows that are compared have it and differ in it: what one learner has and another lacks does not say."""
    settings = comparison.settings()
    return any(len({row.options[option] for row in rows if option in row.options}) > 1 for rows in settings)


def environment_table(comparison: Comparison) -> TextTable:
    """One column for each environment that occurs, headed by the runs that had it."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, list[str]]] = {}
    for row in comparison.rows:
        for run in row.runs:
            group = groups.setdefault(tuple(sorted(run.environment.items())), {})
            group.setdefault(row.label, []).append(run.seed)
    keys = dict.fromkeys(key for environment in groups for key, _ in environment)
    lines = [[key, *(dict(environment).get(key, DASH) for environment in groups)] for key in keys]
    heads = ["all runs"] if len(groups) == 1 else [_whose(group) for group in groups.values()]
    return TextTable(["environment", *heads], lines, numeric=range(0))


def _whose(seeds: dict[str, list[str]]) -> str:
    return "; ".join(f"{label}: {'seed' if len(s) == 1 else 'seeds'} {', '.join(s)}" for label, s in seeds.items())


def appendix_tables(comparison: Comparison) -> dict[str, TextTable]:
    """Tables at the end of the report, by title; those without a line are left out."""
    tables = {
        "Options that differ": options_table(comparison, only=True),
        "Other options that differ": options_table(comparison, only=False),
        "Environment": environment_table(comparison),
        "Each run": runs_table(comparison),
    }
    return {title: table for title, table in tables.items() if table.rows}


def result_notes(comparison: Comparison) -> list[str]:
    """What a reader must know to read the table, one sentence each."""
    words = [
        f"± is the {SPREAD_WORDS[comparison.spread]}.",
        "ACC: mean accuracy (%) over all tasks after the last. LA: mean accuracy (%) on each task right after it.",
        f"FM ({comparison.fm}): {FM_WORDS[comparison.fm]}; mean over all tasks but the last, in points.",
    ]
    if sample_header(comparison):
        words.append("fwd, bwd: images through the networks while learning, forward and backward, once for each pass.")
    if any(len(trend.lines) == 2 for trend in trends(comparison)):
        words.append("difference: to the line above, in points, with the 95 % interval and p of Welch's t-test.")
    if any(len(row.runs) > 1 for row in comparison.rows) and len(comparison.rows) > 1:
        words.append("Bold: better than every other row of its table by Welch's t-test over seeds (p < 0.05).")
    if any(row.is_offline for row in comparison.rows):
        words.append("Offline learns all tasks at once, in several epochs: what the others can be measured by.")
    repeated = [row.label for row in comparison.rows if len({run.seed for run in row.runs}) < len(row.runs)]
    return words + [f"{label}: a seed occurs twice, so its spread is too small." for label in repeated]


def number_text(value: float) -> str:
    """Two digits; a dash where there is no value. Never minus zero.

    >>> number_text(71.804), number_text(-0.001), number_text(float("nan"))
    ('71.80', '0.00', '—')
    """
    return f"{value + 0.0:z.2f}" if math.isfinite(value) else DASH


def _steps_text(run: RunRecord) -> str:
    return (DASH if run.last_step is None else f"{run.last_step:,}") + ", diverged" * run.log.diverged
