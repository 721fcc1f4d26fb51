"""The ledger for people and programs: in a terminal of 120 columns, as Markdown, as JSON."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.text import Text

from dualnet.report.cost import cost_texts
from dualnet.report.markdown import markdown_list, markdown_table, markdown_text
from dualnet.report.rows import DASH
from dualnet.report.tables import TextTable, number_text
from dualnet.report.terminal import rich_table
from dualnet.text import printable
from dualnet.ttest import Sample

from .ledger import ABOVE, BELOW, INCONCLUSIVE, MAX_SEEDS, REPRODUCED, Entry, Ledger

ARROWS = {"ACC": "ACC ↑", "FM": "FM ↓", "LA": "LA ↑"}
COSTS = ("fwd", "bwd", "s / run", "memory")
DIFFERS = "†"
MARKS = {REPRODUCED: "=", ABOVE: ">", BELOW: "<", INCONCLUSIVE: "?"}
FOOT = (
    "diff: ours minus published, ± half of its 95 % interval, by Welch's t-test from mean, standard deviation and "
    "number of runs on both sides. A single run is assumed to spread as the published ones do.",
    "reproduced (=): the interval lies within ±{margin:g} points. above (>), below (<): the interval excludes 0 and "
    "reaches beyond {margin:g} points. inconclusive (?): anything else. The row's verdict is that of ACC; the "
    "differences of FM and LA are marked with theirs. Higher is not always better: FM is not.",
    "needs: how many seeds of ours would decide what is inconclusive, if our mean and both standard deviations stay "
    f"as they are; > {MAX_SEEDS} also where no number would, because the published runs are too few.",
    "Published ± is taken as a standard deviation, as the paper says; the authors' code prints 2 std / √runs. "
    "fwd, bwd: samples that went through a network, and back.",
    f"{DIFFERS}: the protocol is not the one that the paper states, or the options are not the row's; both are named. "
    "Unknown: the paper leaves these fields of the protocol open, so they are not compared.",
)


def terminal_view(ledger: Ledger) -> Group:
    """One table for each group of rows, what must be known of its rows, and what the words mean."""
    parts: list[Any] = []
    for name, entries in groups(ledger):
        table = ledger_table(entries)
        without_source = range(len(table.header) - 1)
        parts += [rich_table(table, name, without_source), *map(dim, notes(name, entries, ledger)), ""]
    return Group(*parts, Text(counts_text(ledger), style="bold"), *map(dim, foot(ledger)))


def dim(text: str) -> Text:
    return Text(printable(text), style="dim")


def markdown_page(ledger: Ledger) -> str:
    parts = ["# Ledger", counts_text(ledger)]
    for name, entries in groups(ledger):
        table = name.partition("/")[0]
        title = f"## {markdown_text(f'{table}: {ledger.titles[table]}')}"
        parts += [title] if title not in parts else []
        parts += [f"### {markdown_text(name)}", markdown_table(ledger_table(entries))]
        parts += [markdown_list(said)] if (said := notes(name, entries, ledger)) else []
    if words := foot(ledger):
        parts += ["## What the words mean", markdown_list(words)]
    return "\n\n".join(parts) + "\n"


def json_text(ledger: Ledger) -> str:
    content = {
        "settings": ledger.settings,
        "margin": ledger.margin,
        "definitions": foot(ledger),
        "rows": [dataclasses.asdict(entry) for entry in ledger.entries],
        "not_published": ledger.missing,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def groups(ledger: Ledger) -> list[tuple[str, list[Entry]]]:
    return [(name, list(same)) for name, same in groupby(ledger.entries, lambda entry: entry.name.rpartition("/")[0])]


def foot(ledger: Ledger) -> list[str]:
    """What the words mean, where there is anything to compare."""
    return [line.format(margin=ledger.margin) for line in FOOT if any(entry.source for entry in ledger.entries)]


def ledger_table(entries: Sequence[Entry]) -> TextTable:
    """For each row ours with what it cost, the published line and, where there is one, the difference."""
    header = ["row", "", "runs", *ARROWS.values(), "verdict", *COSTS, "source"]
    lines = [line for entry in entries for line in entry_lines(entry)]
    return TextTable(header, lines, numeric=[2, 3, 4, 5, 7, 8, 9, 10])


def entry_lines(entry: Entry) -> Iterator[list[str]]:
    metrics, no_cost = entry.metrics.values(), [""] * len(COSTS)
    done, asked = len(entry.seeds), entry.seeds_asked
    runs = str(done) if done >= asked else f"{done}/{asked}"
    verdict = f"{entry.verdict} {DIFFERS}" if entry.protocol_differs or entry.options_changed else entry.verdict
    ours = [sample_text(metric.ours) for metric in metrics]
    yield [short_name(entry.name), "ours", runs, *ours, verdict, *cost_texts(entry.cost), ""]
    if entry.source is not None:
        theirs = [sample_text(metric.published) for metric in metrics]
        yield ["", "paper", str(entry.published_runs), *theirs, "", *no_cost, entry.source]
        if entry.seeds:
            needed = entry.metrics["ACC"].seeds_needed or f"> {MAX_SEEDS}"
            needs = f"needs {needed}" if entry.verdict == INCONCLUSIVE else ""
            yield ["", "diff", "", *difference_texts(entry), needs, *no_cost, ""]


def short_name(name: str) -> str:
    return name.rpartition("/")[2]


def difference_texts(entry: Entry) -> Iterator[str]:
    for name, metric in entry.metrics.items():
        found, mark = metric.difference, "" if name == "ACC" else MARKS.get(metric.verdict, "")
        yield f"{found.mean:+.2f}±{number_text(found.half_width)}{mark}" if found else DASH


def sample_text(sample: Sample | None) -> str:
    if sample is None:
        return DASH
    return f"{number_text(sample.mean)}±{DASH if sample.std is None else number_text(sample.std)}"


def notes(group: str, entries: Sequence[Entry], ledger: Ledger) -> list[str]:
    """What must be known of the rows of a group; what holds for many is said once."""
    words: dict[str, list[str]] = {}
    for entry in entries:
        for note in entry_notes(entry):
            words.setdefault(note, []).append(short_name(entry.name))
    missing = [f"{short_name(name)}: {why}" for name, why in ledger.missing.items() if name.startswith(f"{group}/")]
    return [f"{', '.join(names)}: {note}" for note, names in words.items()] + missing


def entry_notes(entry: Entry) -> Iterator[str]:
    if changed := entry.protocol_differs:
        fields = ", ".join(f"{name} ({ours}, published {theirs})" for name, (ours, theirs) in changed.items())
        yield f"{DIFFERS} differs in {fields}"
    if changed := entry.options_changed:
        options = ", ".join(f"{name} {ours} (the row: {row})" for name, (ours, row) in changed.items())
        yield f"{DIFFERS} run with {options}"
    if entry.seeds and not entry.manifest:
        yield "the runs have no manifest, so their protocol is not compared"
    if entry.seeds and entry.unknown:
        yield f"unknown in the paper: {', '.join(entry.unknown)}"
    if entry.runs_of != entry.name:
        yield f"the runs are those of {entry.runs_of}"
    if entry.note:
        yield entry.note


def counts_text(ledger: Ledger) -> str:
    """How many rows have which verdict."""
    verdicts = [entry.verdict for entry in ledger.entries]
    words = [word for word in dict.fromkeys((REPRODUCED, *sorted(verdicts))) if word != DASH]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in words)
    without = f", {verdicts.count(DASH)} run without a published value" if DASH in verdicts else ""
    return f"{len(verdicts)} rows, settings of the {ledger.settings}: {counts}{without}."
