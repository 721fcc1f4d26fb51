"""The report as Markdown and for a terminal of 80 columns, and a single run for a terminal. All text is escaped."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from dualnet.experiments.record import EXPERIMENT_FILE, RunRecord, no_model, read_record
from dualnet.report import tables
from dualnet.report.classes import class_table, class_tables, tasks_table
from dualnet.report.data_set import chance, class_tasks, data_set_names, data_set_text, is_task_aware
from dualnet.report.findings import findings
from dualnet.report.rows import DASH, Comparison, ReportRow
from dualnet.report.tables import Best, TextTable, number_text
from dualnet.text import compact_table, escape, pluralise

LEARNER_FIELDS = {"width": "width {}", "updates": "{} updates per batch", "augmentation": "augmentation {}"}


def markdown_page(comparison: Comparison) -> str:
    """The whole report, without the plots."""
    parts = ["# Report"]
    if comparison.rows:
        parts.append(markdown_list(findings(comparison)))
        for rows in comparison.settings():
            data_set = data_set_text(rows[0].runs[0], rows[0].data_set)
            parts += [f"## {markdown_text(rows[0].setting_name)}", markdown_text(data_set)]
            shown = [
                tables.results_table(rows, comparison),
                tables.anytime_table(rows, comparison),
                *class_tables(rows),
            ]
            parts += [markdown_table(table) for table in shown if table.rows]
        parts.append(markdown_list(tables.result_notes(comparison)))
    titled = {
        "Not finished": tables.unfinished_table(comparison),
        **tables.trend_tables(comparison),
        "Stability over the stream": tables.stability_table(comparison.rows, comparison),
        **tables.appendix_tables(comparison),
    }
    for title, table in titled.items():
        parts += [f"## {title}", markdown_table(table)] if table.rows else []
    return "\n\n".join(parts) + "\n"


def markdown_table(table: TextTable) -> str:
    """The table, with numeric columns aligned to the right."""
    marks = ["---:" if i in table.numeric else "---" for i in range(len(table.header))]
    lines = [[markdown_text(title) for title in table.header], marks]
    for line in table.rows:
        lines.append([f"**{markdown_text(cell)}**" if isinstance(cell, Best) else markdown_text(cell) for cell in line])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_text(sentence)}" for sentence in sentences)


def markdown_text(text: str) -> str:
    r"""The text with Markdown and HTML syntax escaped.

    >>> markdown_text("a|b <i> *c*")
    'a\\|b &lt;i> \\*c\\*'
    """
    text = escape(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*`\[\]])", r"\\\1", text)


def terminal_view(comparison: Comparison, page: Path) -> Group:
    """Results, unfinished runs, findings, definitions, and the path of the HTML page."""
    shown = []
    for rows in comparison.settings():  # results and costs in two tables, so that long names fit
        table, costs = tables.results_table(rows, comparison), len(tables.RESULT_HEADER)
        shown.append(rich_table(table, rows[0].setting_name, range(costs)))
        learners = TextTable(table.header, table.rows[: len(rows)], table.numeric)
        shown.append(rich_table(learners, "cost", [0, *range(costs, len(table.header))]))
        if (anytime := tables.anytime_table(rows, comparison)).rows:
            shown.append(rich_table(anytime, "anytime accuracy"))
    shown += [rich_table(table, title) for title, table in tables.trend_tables(comparison).items()]
    if comparison.unfinished:
        shown.append(rich_table(tables.unfinished_table(comparison), "not finished"))
    found = [Text(escape(sentence)) for sentence in findings(comparison)]
    notes = [Text(escape(note), style="dim") for note in tables.result_notes(comparison)] if comparison.rows else []
    return Group(*(part for table in shown for part in (table, "")), *found, *notes, Text(f"Page: {escape(page)}"))


def rich_table(table: TextTable, title: str, columns: Sequence[int] | None = None) -> RichTable:
    """A table with all columns, or some. Lines without a name belong to the line above and are dim."""
    columns = range(len(table.header)) if columns is None else columns
    shown = compact_table(title)
    for i in columns:
        numeric = i in table.numeric
        justify = "right" if numeric else "left"
        heading = escape(table.header[i]).replace("peak memory", "peak\nmemory")  # so that a ledger fits its columns
        shown.add_column(Text(heading), justify=justify, no_wrap=numeric, overflow="fold")
    for line in table.rows:
        cells = [
            Text(escape(line[i]).replace(" ± ", "±"), style="bold" if isinstance(line[i], Best) else "")
            for i in columns
        ]
        shown.add_row(*cells, style="" if line[0] else "dim")
    return shown


def run_view(folder: Path) -> Group:
    """Describe the run in a folder. Raises ValueError if there is none, or if it is damaged."""
    if not (folder / EXPERIMENT_FILE).is_file():
        raise ValueError(no_model(folder))
    run = read_record(folder)
    row = ReportRow(0, run.name, [run])
    facts = RichTable.grid(padding=(0, 2))
    for name, text in _facts(run, row.stream_options):
        facts.add_row(Text(name, style="bold"), Text(escape(text)))
    parts: list[RichTable | str] = [facts]
    if class_tasks(run):
        table, accuracy = tasks_table(row), run.accuracy
        more = {} if accuracy is None else {"after learning it": np.diagonal(accuracy), "at the end": accuracy[-1]}
        lines = [[*line, *map(number_text, pair)] for line, *pair in zip(table.rows, *more.values(), strict=True)]
        note = " (`predict --task` counts them from 0)" if is_task_aware(run) else ""
        parts += ["", rich_table(TextTable([*table.header, *more], lines, numeric=[2, 3]), f"tasks{note}")]
    if run.classes is not None:
        parts += ["", rich_table(class_table([row]), "classes, after the last task")]
    return Group(*parts)


def _facts(run: RunRecord, stream_options: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "run", f"{run.name}, seed {run.seed}"
    yield "data set", data_set_text(run, *data_set_names([run]))
    batches = f"batches of {run.options.get('batch_size', DASH)}"
    yield "protocol", ", ".join([run.options.get("protocol", DASH), batches, *stream_options])
    learner, manifest = [run.options.get("learner.name", DASH)], run.manifest
    if slots := manifest.get("memory_slots"):
        learner.append(f"memory of {slots} slots ({manifest.get('memory')})")
    known = {field: text for field, text in LEARNER_FIELDS.items() if manifest.get(field) not in (None, "none")}
    yield "learner", ", ".join([*learner, *(text.format(manifest[field]) for field, text in known.items())])
    steps = "no step yet" if run.last_step is None else pluralise(run.last_step, "step")
    where = f" on {hardware}" if (hardware := run.environment.get("hardware")) else ""
    if run.accuracy is None:
        learned = f"{len(run.log.task_ends)} of {pluralise(len(class_tasks(run)), 'task')} learned"
        yield "state", f"{'diverged' if run.log.diverged else 'not finished'}: {steps}, {learned}{where}"
        return
    yield "state", f"finished: {steps} in {tables.seconds_text(run.seconds)} s{where}"
    figures = [f"{name} {number_text(value)}" for name, value in run.metrics.items() if value is not None]
    guessing = chance(run)
    yield "metrics", ", ".join(figures) + ("" if guessing is None else f"; chance {guessing:.2f}")
