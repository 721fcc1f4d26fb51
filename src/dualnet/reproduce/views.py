"""The ledger for people and programs: in a terminal of 120 columns, as Markdown, as JSON."""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from dualnet.report.cost import cost_texts
from dualnet.report.markdown import markdown_list, markdown_table, markdown_text
from dualnet.report.rows import DASH
from dualnet.report.tables import Cell, TextTable, number_text
from dualnet.report.terminal import rich_table
from dualnet.text import printable
from dualnet.ttest import Sample

from .ledger import ABOVE, BELOW, INCONCLUSIVE, MAX_SEEDS, REPRODUCED, Entry, Ledger, Metric

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


# In the terminal


def terminal_view(ledger: Ledger) -> Group:
    """One table for each group of rows, what must be known of its rows, and what the words mean."""
    parts: list[Any] = []
    for name, entries in groups(ledger.entries):
        table = ledger_table(entries)
        narrow = TextTable(table.header[:-1], [line[:-1] for line in table.rows], table.numeric)  # without the source
        parts += [rich_table(narrow, name), *map(dim, notes(entries, ledger)), ""]
    return Group(*parts, Text(counts_text(ledger), style="bold"), *map(dim, foot(ledger)))


def dim(text: str) -> Text:
    return Text(printable(text), style="dim")


def foot(ledger: Ledger) -> tuple[str, ...]:
    """What the words mean, where there is anything to compare."""
    compares = any(entry.published for entry in ledger.entries)
    return tuple(line.format(margin=ledger.margin) for line in FOOT) if compares else ()


def ledger_table(entries: Sequence[Entry]) -> TextTable:
    """For each row ours with what it cost, the published line and, where there is one, the difference."""
    header = ["row", "", "runs", *ARROWS.values(), "verdict", *COSTS, "source"]
    lines = [line for entry in entries for line in entry_lines(entry)]
    return TextTable(header, lines, numeric=[2, 3, 4, 5, 7, 8, 9, 10])


def entry_lines(entry: Entry) -> Iterator[list[Cell]]:
    metrics, published, no_cost = entry.metrics.values(), entry.published, [""] * len(COSTS)
    ours = [sample_text(metric.ours) for metric in metrics]
    first = [entry.row.short_name, "ours", runs_text(entry), *ours, verdict_text(entry), *cost_texts(entry.cost), ""]
    yield [Cell(text) for text in first]
    if published is not None:
        theirs = [sample_text(metric.published) for metric in metrics]
        second = ["", "paper", str(published.runs), *theirs, "", *no_cost, published.source]
        yield [Cell(text, secondary=True) for text in second]
        if entry.seeds:
            third = ["", "diff", "", *difference_texts(entry), needs_text(entry), *no_cost, ""]
            yield [Cell(text, secondary=True) for text in third]


def verdict_text(entry: Entry) -> str:
    return f"{entry.verdict} {DIFFERS}" if entry.differs or entry.changed else entry.verdict


def runs_text(entry: Entry) -> str:
    """How many seeds are finished, and of how many where the table asks for more."""
    asked = entry.row.num_seeds
    return str(len(entry.seeds)) if len(entry.seeds) >= asked else f"{len(entry.seeds)}/{asked}"


def difference_texts(entry: Entry) -> Iterator[str]:
    for name, metric in entry.metrics.items():
        found, mark = metric.difference, "" if name == "ACC" else MARKS.get(metric.verdict, "")
        yield f"{found.mean:+.2f}±{number_text(found.half_width)}{mark}" if found else DASH


def needs_text(entry: Entry) -> str:
    """How many seeds of ours would decide what is inconclusive."""
    return f"needs {entry.metrics['ACC'].seeds_needed or f'> {MAX_SEEDS}'}" if entry.verdict == INCONCLUSIVE else ""


def sample_text(sample: Sample | None) -> str:
    if sample is None:
        return DASH
    return f"{number_text(sample.mean)}±{DASH if sample.std is None else number_text(sample.std)}"


def notes(entries: Sequence[Entry], ledger: Ledger) -> list[str]:
    """What must be known of the rows of a group; what holds for many is said once."""
    words: dict[str, list[str]] = {}
    for entry in entries:
        for note in entry_notes(entry):
            words.setdefault(note, []).append(entry.row.short_name)
    group = entries[0].row.group
    missing = [
        f"{name.rpartition('/')[2]}: {why}" for name, why in ledger.missing.items() if name.startswith(f"{group}/")
    ]
    return [f"{', '.join(names)}: {note}" for note, names in words.items()] + missing


def entry_notes(entry: Entry) -> list[str]:
    found = []
    if entry.differs:
        fields = ", ".join(f"{name} ({ours}, published {theirs})" for name, (ours, theirs) in entry.differs.items())
        found.append(f"{DIFFERS} differs in {fields}")
    if entry.changed:
        options = ", ".join(f"{name} {ours} (the row: {row})" for name, (ours, row) in entry.changed.items())
        found.append(f"{DIFFERS} run with {options}")
    if entry.seeds and not entry.manifest:
        found.append("the runs have no manifest, so their protocol is not compared")
    if entry.seeds and entry.unknown:
        found.append(f"unknown in the paper: {', '.join(entry.unknown)}")
    if entry.row.home != entry.row.name:
        found.append(f"the runs are those of {entry.row.home}")
    if entry.published and entry.published.note:
        found.append(entry.published.note)
    return found


def counts_text(ledger: Ledger) -> str:
    """How many rows have which verdict."""
    verdicts = [entry.verdict for entry in ledger.entries]
    counts = [
        f"{verdicts.count(word)} {word}" for word in dict.fromkeys((REPRODUCED, *sorted(verdicts))) if word != DASH
    ]
    without = f", {verdicts.count(DASH)} run without a published value" if DASH in verdicts else ""
    return f"{len(verdicts)} rows, settings of the {ledger.settings}: {', '.join(counts)}{without}."


def groups(entries: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    return [(name, list(same)) for name, same in itertools.groupby(entries, key=lambda entry: entry.row.group)]


# Markdown


def markdown_page(ledger: Ledger) -> str:
    parts = ["# Ledger", counts_text(ledger)]
    titles = {table.name: table.title for table in ledger.tables}
    for table, entries in itertools.groupby(ledger.entries, key=lambda entry: entry.row.name.partition("/")[0]):
        parts.append(f"## {markdown_text(f'{table}: {titles.get(table, table)}')}")
        for name, same in groups(list(entries)):
            parts += [f"### {markdown_text(name)}", markdown_table(ledger_table(same))]
            if said := notes(same, ledger):
                parts.append(markdown_list(said))
    if words := foot(ledger):
        parts += ["## What the words mean", markdown_list(words)]
    return "\n\n".join(parts) + "\n"


# JSON


def json_text(ledger: Ledger) -> str:
    content = {
        "settings": ledger.settings,
        "margin": ledger.margin,
        "definitions": foot(ledger),
        "rows": [json_entry(entry) for entry in ledger.entries],
        "not_published": ledger.missing,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def json_entry(entry: Entry) -> dict[str, Any]:
    published = entry.published
    return {
        "name": entry.row.name,
        "runs_of": entry.row.home,
        "verdict": entry.verdict,
        "seeds": entry.seeds,
        "seeds_asked": entry.row.num_seeds,
        "metrics": {name: json_metric(metric) for name, metric in entry.metrics.items()},
        "protocol_differs": entry.differs,
        "options_changed": entry.changed,
        "unknown": entry.unknown,
        "manifest": entry.manifest,
        "cost": dataclasses.asdict(entry.cost),
        "source": published.source if published else None,
        "published_runs": published.runs if published else None,
        "published_spread": published.spread if published else None,
        "note": published.note if published else "",
    }


def json_metric(metric: Metric) -> dict[str, Any]:
    return {
        **dataclasses.asdict(metric),
        "difference": dataclasses.asdict(metric.difference) if metric.difference else None,
        "verdict": metric.verdict,
        "seeds_needed": metric.seeds_needed if metric.verdict == INCONCLUSIVE else None,
    }
