"""The ledger as text for a terminal of 120 columns, as Markdown and as JSON."""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.text import Text

from dualnet.experiments.record import option_text
from dualnet.report.cells import Cell, Number, Table
from dualnet.report.markdown import markdown_list, markdown_table, markdown_text
from dualnet.report.tables import COST_HEADER, METRICS, cost_cells, heading
from dualnet.report.terminal import rich_table
from dualnet.reproduce.ledger import (
    ABOVE,
    BELOW,
    INCONCLUSIVE,
    MAX_SEEDS,
    NOTHING_PUBLISHED,
    REPRODUCED,
    Entry,
    Ledger,
)
from dualnet.text import escape, pluralise
from dualnet.ttest import Sample

DIFFERS = "†"
MARKS = {REPRODUCED: "=", ABOVE: ">", BELOW: "<", INCONCLUSIVE: "?"}
DEFINITIONS = (
    "diff: our mean minus the published one, ± half of its 95 % interval by Welch's t-test. A single run is assumed to "
    "have the standard deviation of the published runs.",
    "reproduced (=): the interval lies within ±{margin:g} points. above (>), below (<): the interval excludes 0 and "
    "reaches beyond {margin:g} points. inconclusive (?): all other cases. The verdict column is for ACC; FM and LA "
    "have their marks after the difference. For FM, lower is better.",
    "settings not published: neither the paper nor the authors' code gives all options of the row.",
    "needs: the number of our seeds for a conclusive verdict, if our mean and both standard deviations do not change; "
    f"> {MAX_SEEDS} includes rows for which no number is enough, because there are too few published runs.",
    "The published ± is read as a standard deviation, as the paper states, of the authors' number of runs.",
    "forward, backward: images that passed through a network.",
    f"{DIFFERS}: the protocol differs from the paper's, or the options differ from the table's; the notes list how. "
    "Not stated: protocol fields that the paper does not give, so they are not compared.",
    "earlier: runs of the row that were replaced by those of the line `ours`, and do not count; the notes name them in "
    "the same order.",
)


def terminal_view(ledger: Ledger) -> Group:
    """A table with notes for each group of rows, the number of rows by verdict, and the definitions."""
    parts: list[Any] = []
    for name, entries in groups(ledger):
        table = ledger_table(entries)
        without_source = range(len(table.header) - 1)
        parts += [rich_table(table, name, without_source), *map(dim, notes(name, entries, ledger)), ""]
    return Group(*parts, Text(counts_text(ledger), style="bold"), *map(dim, definitions(ledger)))


def dim(text: str) -> Text:
    return Text(escape(text), style="dim")


def markdown_page(ledger: Ledger) -> str:
    parts = ["# Ledger", counts_text(ledger)]
    for name, entries in groups(ledger):
        table = name.partition("/")[0]
        title = f"## {markdown_text(f'{table}: {ledger.titles[table]}')}"
        parts += [title] if title not in parts else []
        parts += [f"### {markdown_text(name)}", markdown_table(ledger_table(entries))]
        parts += [markdown_list(lines)] if (lines := notes(name, entries, ledger)) else []
    if lines := definitions(ledger):
        parts += ["## Definitions", markdown_list(lines)]
    return "\n\n".join(parts) + "\n"


def json_text(ledger: Ledger) -> str:
    content = {
        "settings": ledger.settings,
        "margin": ledger.margin,
        "definitions": definitions(ledger),
        "rows": [dataclasses.asdict(entry) for entry in ledger.entries],
        "not_published": ledger.missing,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def groups(ledger: Ledger) -> list[tuple[str, list[Entry]]]:
    return [(name, list(same)) for name, same in groupby(ledger.entries, lambda entry: entry.name.rpartition("/")[0])]


def definitions(ledger: Ledger) -> list[str]:
    """The definitions, if any row has published values to compare with."""
    if not any(entry.source for entry in ledger.entries):
        return []
    return [line.format(margin=ledger.margin) for line in DEFINITIONS]


def ledger_table(entries: Sequence[Entry]) -> Table:
    """The lines of each row: ours with its cost, the published values, the difference, and earlier runs."""
    header = ["row", "", "runs", *map(heading, METRICS), "verdict", *COST_HEADER, "source"]
    return Table(header, [line for entry in entries for line in entry_lines(entry)])


def entry_lines(entry: Entry) -> Iterator[list[Cell]]:
    metrics, no_cost = entry.metrics.values(), [""] * len(COST_HEADER)
    done, asked = len(entry.seeds), entry.seeds_asked
    runs = Number(done, note="" if done >= asked else f"/{asked}")
    verdict = f"{entry.verdict} {DIFFERS}" if entry.protocol_differs or entry.options_changed else entry.verdict
    ours = [sample_cell(metric.ours) for metric in metrics]
    yield [short_name(entry.name), "ours", runs, *ours, verdict, *cost_cells(entry.cost), ""]
    if entry.source is not None:
        theirs = [sample_cell(metric.published) for metric in metrics]
        yield ["", "paper", Number(entry.published_runs), *theirs, "", *no_cost, entry.source]
        if entry.seeds:
            needed = entry.metrics["ACC"].seeds_needed or f"> {MAX_SEEDS}"
            needs = f"needs {needed}" if entry.verdict == INCONCLUSIVE else ""
            yield ["", "diff", "", *difference_cells(entry), needs, *no_cost, ""]
    for earlier in entry.earlier:
        samples = [sample_cell(sample) for sample in earlier.metrics.values()]
        yield ["", "earlier", Number(len(earlier.seeds)), *samples, "", *no_cost, earlier.name]


def short_name(name: str) -> str:
    return name.rpartition("/")[2]


def difference_cells(entry: Entry) -> Iterator[Number]:
    for name, metric in entry.metrics.items():
        difference, mark = metric.difference, "" if name == "ACC" else MARKS.get(metric.verdict, "")
        yield Number(difference.mean, "difference", difference.half_width, mark) if difference else Number(None)


def sample_cell(sample: Sample | None) -> Number:
    if sample is None:
        return Number(None)
    return Number(sample.mean, "points", math.nan if sample.std is None else sample.std)


def notes(group: str, entries: Sequence[Entry], ledger: Ledger) -> list[str]:
    """The notes on the rows of a group; rows with the same note are named together."""
    rows: dict[str, list[str]] = {}
    for entry in entries:
        for note in entry_notes(entry):
            rows.setdefault(note, []).append(short_name(entry.name))
    missing = [f"{short_name(name)}: {why}" for name, why in ledger.missing.items() if name.startswith(f"{group}/")]
    return [f"{', '.join(names)}: {note}" for note, names in rows.items()] + missing


def entry_notes(entry: Entry) -> Iterator[str]:
    if changed := entry.protocol_differs:
        fields = ", ".join(f"{name} ({ours}, published {theirs})" for name, (ours, theirs) in changed.items())
        yield f"{DIFFERS} protocol differs in {fields}"
    if changed := entry.options_changed:
        options = ", ".join(
            f"{name} {option_text(ours)} (in the table {option_text(row)})" for name, (ours, row) in changed.items()
        )
        yield f"{DIFFERS} run with {options}"
    if entry.seeds and entry.unknown:
        yield f"not stated in the paper: {', '.join(entry.unknown)}"
    if entry.runs_of != entry.name:
        yield f"uses the runs of {entry.runs_of}"
    if entry.not_published:
        yield f"neither the paper nor the authors' code gives {entry.not_published}"
    if entry.note:
        yield entry.note
    for earlier in entry.earlier:
        changed = ", ".join(
            f"{name} {option_text(theirs)} (now {option_text(ours)})"
            for name, (theirs, ours) in earlier.differs.items()
        )
        yield f"earlier runs {earlier.name}: {changed or 'with the same options'}"


def counts_text(ledger: Ledger) -> str:
    """The number of rows by verdict."""
    verdicts = [entry.verdict for entry in ledger.entries]
    count = verdicts.count(NOTHING_PUBLISHED)
    without = f", {count} run without a published value" if count else ""
    return f"{pluralise(len(verdicts), 'row')}, settings of the {ledger.settings}: {counts_of(verdicts)}{without}."


def counts_of(verdicts: Sequence[str]) -> str:
    kinds = [verdict for verdict in dict.fromkeys((REPRODUCED, *sorted(verdicts))) if verdict != NOTHING_PUBLISHED]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in kinds)
