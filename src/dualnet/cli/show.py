"""`dualnet show`: a summary of a run, or of a saved model."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dualnet.cli.terminal import print_line, print_rich
from dualnet.experiments.record import CHECKPOINTS, EXPERIMENT_FILE
from dualnet.files import READ_ERRORS, describe_error
from dualnet.report.cells import DASH, Cell, Number, Table
from dualnet.report.run_summary import run_summary
from dualnet.report.terminal import rich_table
from dualnet.text import pluralise

if TYPE_CHECKING:
    from dualnet.models.model import Model

TEST_SETS = {  # by name in the result of a session: column (of earlier classes, unless it says new), and images
    "learned_old": ("learned", "learned images (leave-one-out)"),
    "learned_new": ("learned, new", "learned images (leave-one-out)"),
    "held_out_old": ("held out", "held-out images"),
    "held_out_new": ("held out, new", "held-out images"),
    "old": ("test", "test images"),
    "new": ("test, new", "test images"),
}


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    if (arguments.run / EXPERIMENT_FILE).is_file() or not (arguments.run / CHECKPOINTS).is_dir():
        print_rich(run_summary(arguments.run), width=100)
        return
    from dualnet.models.model import load  # imports PyTorch, which is slow and not needed for runs

    model = load(arguments.run, trust=arguments.trust)
    try:
        table = session_table(model.sessions)
    except READ_ERRORS as error:
        raise ValueError(f"{arguments.run}: its sessions cannot be shown ({describe_error(error)})") from error
    for line in model_lines(model):
        print_line(line)
    if model.sessions:
        show_sessions(table, model.sessions[-1])
    rows = model.learner.class_mask.tolist()
    for number, row in enumerate(rows):
        names = ", ".join(name for name, is_in in zip(model.class_names, row, strict=True) if is_in)
        print_line(f"task {number}: {names}" if len(rows) > 1 else f"classes: {names}")


def model_lines(model: Model) -> Iterator[str]:
    """Learner and image size, and the images in the memory and held out."""
    spec, memories, held_out = model.learner.spec, model.learner.memories, model.held_out
    size = " x ".join(map(str, spec.image_shape[1:]))
    yield f"{type(model.learner).__name__}, {pluralise(spec.num_classes, 'class', 'classes')}, {size} pixels"
    if slots := sum(memory.num_slots for memory in memories):
        stored = [number for memory in memories for number in memory.labels[memory.filled].tolist()]
        yield f"memory: {len(stored):,} of {pluralise(slots, 'image')} ({by_class(stored, model)})"
    if held_out.every:
        kept = f"{pluralise(len(held_out.labels), 'image')} kept for testing"
        yield f"held out: about one image in {held_out.every}; {kept} ({by_class(held_out.labels.tolist(), model)})"


def by_class(numbers: Iterable[int], model: Model) -> str:
    counts = Counter(numbers)
    return ", ".join(f"{name} {counts[number]}" for number, name in enumerate(model.class_names))


def session_table(sessions: Sequence[Mapping[str, Any]]) -> Table:
    """When each session of `dualnet learn` ended, what it learned, and the accuracies."""
    tested = {part for session in sessions for part in session["after"]}
    columns = {part: column for part, (column, _) in TEST_SETS.items() if part in tested}
    rows: list[list[Cell]] = [[*facts(session), *(accuracy(session, part) for part in columns)] for session in sessions]
    return Table(["session", "images", "classes", *columns.values()], rows)


def show_sessions(table: Table, session: Mapping[str, Any]) -> None:
    """The table, and what the accuracies of the last session were measured on."""
    print_rich(rich_table(table, "sessions, accuracy in %"), width=100)
    if last := session["after"]:
        counts = (f"{column} {last[part][1]:,}" for part, (column, _) in TEST_SETS.items() if part in last)
        print_line(f"images tested in the last session: {'; '.join(counts)}")


def facts(session: Mapping[str, Any]) -> list[Cell]:
    """When it ended, and the numbers of images that it learned and of classes."""
    ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(session["time"]))
    return [ended, Number(session["images"]), Number(session["classes"])]


def accuracy(session: Mapping[str, Any], part: str) -> str:
    """Before and after the session; of new classes only after it."""
    if part not in session["after"]:
        return DASH
    first = f"{session['before'][part][0]:.1f}→" if part in session["before"] else ""
    return f"{first}{session['after'][part][0]:.1f}"
