"""Terminal output for one run: its data set, protocol, learner, state and results."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from dualnet.runs.record import EXPERIMENT_FILE, RunRecord, no_model, read_record
from dualnet.text import printable

from .classes import class_table, tasks_table
from .cost import seconds_text
from .data_set import chance, class_tasks, count_text, data_set_text
from .rows import DASH, ReportRow
from .tables import TextTable, number_text
from .terminal import rich_table

MANIFEST = {
    "width": "width {}",
    "updates": "{} updates per batch",
    "augmentation": "augmentation {}",
}  # manifest fields of the learner


def run_view(folder: Path) -> Group:
    """Describe the run in a folder. Raises ValueError if there is none, or if it is damaged."""
    if not (folder / EXPERIMENT_FILE).is_file():
        below = sorted(file.parent for file in folder.glob(f"*/{EXPERIMENT_FILE}"))
        raise ValueError(no_model(folder, *below[:1]))
    run = read_record(folder)
    facts = RichTable.grid(padding=(0, 2))
    for name, text in _facts(run):
        facts.add_row(Text(name, style="bold"), Text(printable(text)))
    tables = [rich_table(_tasks(run), "tasks")] if class_tasks(run) else []
    if run.classes is not None:
        tables.append(rich_table(class_table([ReportRow(0, run.name, [run])]), "classes, after the last task"))
    return Group(facts, *(part for table in tables for part in ("", table)))


def _facts(run: RunRecord) -> Iterator[tuple[str, str]]:
    yield "run", f"{run.name}, seed {run.seed}"
    yield "data set", data_set_text(run)
    labels = "".join(f", {text}" for text in ReportRow(0, "", [run]).label_options)
    yield "protocol", f"{run.options.get('protocol', DASH)}, batches of {run.options.get('batch_size', DASH)}{labels}"
    yield "learner", ", ".join([run.options.get("learner.name", DASH), *_learner(run)])
    yield "state", _state(run)
    if run.accuracy is not None:
        figures = [f"{name} {number_text(value)}" for name, value in run.metrics.items() if value is not None]
        guessing = chance(run)
        yield "metrics", ", ".join(figures) + ("" if guessing is None else f"; chance {guessing:.2f}")


def _learner(run: RunRecord) -> Iterator[str]:
    """Options that every learner has; the others are in experiment.yaml."""
    if slots := run.manifest.get("memory_slots"):
        yield f"memory of {slots} slots ({run.manifest.get('memory')})"
    for field, template in MANIFEST.items():
        if run.manifest.get(field) not in (None, "none"):
            yield template.format(run.manifest[field])


def _state(run: RunRecord) -> str:
    where = f" on {hardware}" if (hardware := run.environment.get("hardware")) else ""
    steps = "no step yet" if run.last_step is None else count_text(run.last_step, "step")
    if run.accuracy is not None:
        return f"finished: {steps} in {seconds_text(run.seconds)} s{where}"
    learned = f"{len(run.log.task_ends)} of {count_text(len(class_tasks(run)), 'task')} learned"
    return f"{'diverged' if run.log.diverged else 'not finished'}: {steps}, {learned}{where}"


def _tasks(run: RunRecord) -> TextTable:
    """The classes of each task, and its accuracy after it was learned and after the last task."""
    table = tasks_table(ReportRow(0, "", [run]))
    if run.accuracy is None:
        return table
    figures = zip(np.diagonal(run.accuracy), run.accuracy[-1], strict=True)
    lines = [[*line, *map(number_text, pair)] for line, pair in zip(table.rows, figures, strict=True)]
    return TextTable([*table.header, "after learning it", "at the end"], lines, numeric=[2, 3])
