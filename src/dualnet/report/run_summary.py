"""The summary of a single run for a terminal: data set, protocol, learner, state, tasks and classes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from dualnet.experiments.record import EXPERIMENT_FILE, RunRecord, describe_missing, read_record
from dualnet.report.cells import DASH, Number, Table, number_text
from dualnet.report.class_tables import class_table, tasks_table
from dualnet.report.rows import ReportRow
from dualnet.report.stream_facts import boundaries_text, chance, class_tasks, data_set_text, is_task_aware, labels_text
from dualnet.report.terminal import rich_table
from dualnet.text import escape, pluralise

LEARNER_FIELDS = {"width": "width {}", "updates": "{} updates per batch", "augmentation": "augmentation {}"}


def run_summary(folder: Path) -> Group:
    """Describe the run in a folder. Raises ValueError if there is none, or if it is damaged."""
    if not (folder / EXPERIMENT_FILE).is_file():
        raise ValueError(describe_missing(folder))
    run = read_record(folder)
    row = ReportRow(0, run.name, [run])
    facts = RichTable.grid(padding=(0, 2))
    for name, text in _facts(run):
        facts.add_row(Text(name, style="bold"), Text(escape(text)))
    parts: list[RichTable | str] = [facts]
    if class_tasks(run):
        table, accuracy = tasks_table(row), run.accuracy
        more = {} if accuracy is None else {"after learning it": np.diagonal(accuracy), "at the end": accuracy[-1]}
        lines = [
            [*line, *(Number(value, "points") for value in pair)]
            for line, *pair in zip(table.rows, *more.values(), strict=True)
        ]
        note = " (`predict --task` counts them from 0)" if is_task_aware(run) else ""
        parts += ["", rich_table(Table([*table.header, *more], lines), f"tasks{note}")]
    if run.classes is not None:
        parts += ["", rich_table(class_table([row]), "classes, after the last task")]
    return Group(*parts)


def _facts(run: RunRecord) -> Iterator[tuple[str, str]]:
    yield "run", f"{run.name}, seed {run.seed}"
    yield "data set", data_set_text(run)
    stream = labels_text(run), boundaries_text(run)
    batches = f"batches of {run.options.get('batch_size', DASH)}"
    yield "protocol", ", ".join([str(run.options.get("protocol", DASH)), batches, *filter(None, stream)])
    learner, manifest = [str(run.options.get("learner.name", DASH))], run.manifest
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
    yield "state", f"finished: {steps} in {number_text(run.seconds, 'seconds')} s{where}"
    figures = [f"{name} {number_text(value)}" for name, value in run.metrics.items() if value is not None]
    guessing = chance(run)
    yield "metrics", ", ".join(figures) + ("" if guessing is None else f"; chance {guessing:.2f}")
