"""Tables of the report as text, for the terminal, Markdown and the page; and how figures are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from dualnet.metrics import summary
from dualnet.runs.record import RunRecord

from .rows import DASH, Comparison, ReportRow, differing, mean_and_spread, metric_values

METRICS = {"ACC": max, "FM": min, "LA": max}  # the better of two values
RESULT_HEADER = ["experiment", "protocol", "seeds", "ACC ↑", "FM ↓", "LA ↑"]

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


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    best: bool = False


@dataclass(frozen=True, slots=True)
class TextTable:
    header: list[str]
    rows: list[list[Cell]]
    numeric: range  # the columns that are aligned to the right


def results_table(comparison: Comparison) -> TextTable:
    """One line for each row: mean and spread of the metrics, and what they cost."""
    lines = [line for rows in comparison.settings() for line in result_lines(rows, comparison)]
    header = result_header(comparison)
    return TextTable(header, lines, numeric=range(2, len(header)))


def result_header(comparison: Comparison) -> list[str]:
    return [*RESULT_HEADER, *sample_header(comparison), "s / run", "memory"]


def sample_header(comparison: Comparison) -> list[str]:
    """Columns for the images that went through the networks; runs of older versions did not count them."""
    counted = any(run.forward_samples for row in comparison.rows for run in row.runs)
    return ["fwd", "bwd"] if counted else []


def result_lines(rows: Sequence[ReportRow], comparison: Comparison) -> list[list[Cell]]:
    """The lines of rows that may be compared."""
    metrics = [
        compared([metric_values(row, metric, comparison.fm) for row in rows], better, comparison.spread)
        for metric, better in METRICS.items()
    ]
    return [
        [
            Cell(row.label),
            Cell(", ".join([row.protocol or DASH, *row.unusual_labels])),
            Cell(str(len(row.runs))),
            *(column[i] for column in metrics),
            *(Cell(text) for text in _cost_texts(row.runs, comparison)),
        ]
        for i, row in enumerate(rows)
    ]


def compared(values: Sequence[Sequence[float]], better: Callable[..., str], kind: str) -> list[Cell]:
    """Mean and spread for rows that may be compared; the best is marked where there are two to choose from.

    A row of one seed is not compared with rows of several: it would win by chance.
    """
    both = [tuple(map(number_text, mean_and_spread(seeds, kind))) for seeds in values]
    several = any(len(seeds) > 1 for seeds in values)
    eligible = {mean for (mean, _), seeds in zip(both, values, strict=True) if (len(seeds) > 1) == several} - {DASH}
    best = better(eligible, key=float) if len(eligible) > 1 else None
    return [
        Cell(DASH if mean == DASH else f"{mean} ± {around}", mean == best and (len(seeds) > 1) == several)
        for (mean, around), seeds in zip(both, values, strict=True)
    ]


def _cost_texts(runs: Sequence[RunRecord], comparison: Comparison) -> list[str]:
    """Mean samples and seconds of some runs, and the most memory that one of them held."""
    samples = (_mean([run.forward_samples for run in runs]), _mean([run.backward_samples for run in runs]))
    memory = max(run.peak_memory or 0 for run in runs)
    shown = [samples_text(mean) for mean in samples] if sample_header(comparison) else []
    return [*shown, seconds_text(_mean([run.seconds for run in runs])), memory_text(memory)]


def runs_table(comparison: Comparison) -> TextTable:
    """One line for each finished run."""
    header = ["experiment", "seed", *METRICS, "BWT", *sample_header(comparison), "s", "memory", "steps", "folder"]
    rows = [row for rows in comparison.settings() for row in rows]
    lines = [_run_line(row.label, run, comparison) for row in rows for run in row.runs]
    return TextTable(header, lines, numeric=range(1, len(header) - 1))


def _run_line(label: str, run: RunRecord, comparison: Comparison) -> list[Cell]:
    assert run.accuracy is not None
    metrics = [number_text(value) for value in summary(run.accuracy, comparison.fm).values()]
    costs = [*_cost_texts([run], comparison), _steps_text(run)]
    return [Cell(text) for text in (label, run.seed, *metrics, *costs, str(run.folder))]


def unfinished_table(comparison: Comparison) -> TextTable:
    """One line for each run without a result."""
    steps = [_steps_text(run) + ", diverged" * run.log.diverged for run in comparison.unfinished]
    runs = zip(comparison.unfinished, steps, strict=True)
    lines = [[Cell(run.name), Cell(run.seed), Cell(step), Cell(str(run.folder))] for run, step in runs]
    return TextTable(["experiment", "seed", "last step", "folder"], lines, numeric=range(1, 3))


def options_table(comparison: Comparison) -> TextTable:
    """The options that differ between the rows, and only those; one column for each row."""
    mappings = [{k: v for k, v in row.options.items() if k != "name"} for row in comparison.rows]
    lines = [[Cell(key), *(Cell(m.get(key, DASH)) for m in mappings)] for key in differing(mappings)]
    return TextTable(["option", *(row.label for row in comparison.rows)], lines, numeric=range(0))


def environment_table(comparison: Comparison) -> TextTable:
    """One column for each environment that occurs, headed by the runs that had it."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, list[str]]] = {}
    for row in comparison.rows:
        for run in row.runs:
            group = groups.setdefault(tuple(sorted(run.environment.items())), {})
            group.setdefault(row.label, []).append(run.seed)
    keys = dict.fromkeys(key for environment in groups for key, _ in environment)
    lines = [[Cell(key), *(Cell(dict(environment).get(key, DASH)) for environment in groups)] for key in keys]
    heads = ["all runs"] if len(groups) == 1 else [_whose(group) for group in groups.values()]
    return TextTable(["environment", *heads], lines, numeric=range(0))


def _whose(seeds: dict[str, list[str]]) -> str:
    return "; ".join(f"{label}: {'seed' if len(s) == 1 else 'seeds'} {', '.join(s)}" for label, s in seeds.items())


def appendix_tables(comparison: Comparison) -> dict[str, TextTable]:
    """Tables at the end of the report, by title; those without a line are left out."""
    if not comparison.rows:
        return {}
    tables = {
        "Options that differ": options_table(comparison),
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
    if len(comparison.settings()) > 1:
        words.append("Bold is the best among rows with the same benchmark, protocol and labels.")
    repeated = [row.label for row in comparison.rows if row.has_seed_twice]
    return words + [f"{label}: a seed occurs twice, so its spread is too small." for label in repeated]


def number_text(value: float) -> str:
    """Two digits; a dash where there is no value. Never minus zero.

    >>> number_text(71.804), number_text(-0.001), number_text(float("nan"))
    ('71.80', '0.00', '—')
    """
    return f"{value + 0.0:z.2f}" if math.isfinite(value) else DASH


def seconds_text(seconds: float | None) -> str:
    """Seconds, with a digit where it matters.

    >>> seconds_text(9.27), seconds_text(4321.7), seconds_text(None)
    ('9.3', '4,322', '—')
    """
    if seconds is None or not math.isfinite(seconds):
        return DASH
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:,.0f}"


def samples_text(number: float | None) -> str:
    """A number of images, in thousands or millions where there are so many.

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
    """Bytes in the unit that fits.

    >>> memory_text(3 * 2**30), memory_text(200 * 2**20), memory_text(None)
    ('3.0 GiB', '200 MiB', '—')
    """
    if not num_bytes:
        return DASH
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def _steps_text(run: RunRecord) -> str:
    return DASH if run.last_step is None else f"{run.last_step:,}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
