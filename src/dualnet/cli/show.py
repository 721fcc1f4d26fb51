"""`dualnet show`: a summary of a run, or of a saved model."""

import argparse
from collections import Counter

from dualnet.cli.terminal import print_line, print_rich, show_warning
from dualnet.report.views import run_view
from dualnet.runs.record import EXPERIMENT_FILE, MODEL_FILE
from dualnet.text import count_text


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    if (arguments.run / EXPERIMENT_FILE).is_file() or not (arguments.run / MODEL_FILE).is_file():
        print_rich(run_view(arguments.run), width=100)
        return
    from dualnet.cli.learn import accuracy_lines
    from dualnet.runs.model import load_with_state  # imports PyTorch, which is slow and not needed for runs

    model, state = load_with_state(arguments.run, "cpu", arguments.trust)
    spec, memories = model.learner.spec, model.learner.memories
    size = " x ".join(map(str, spec.image_shape[1:]))
    print_line(f"{type(model.learner).__name__}, {count_text(spec.num_classes, 'class', 'classes')}, {size} pixels")
    stored = Counter(number for memory in memories for number in memory.labels[memory.filled].tolist())
    if slots := sum(memory.num_slots for memory in memories):
        counts = ", ".join(f"{name} {stored[number]}" for number, name in enumerate(model.class_names))
        print_line(f"memory: {stored.total():,} of {count_text(slots, 'image')} ({counts})")
    if model.held_out.every:
        held_out = Counter(model.held_out.labels.tolist())
        counts = ", ".join(f"{name} {held_out[number]}" for number, name in enumerate(model.class_names))
        kept = f"{count_text(held_out.total(), 'image')} kept for testing ({counts})"
        print_line(f"held out: about one image in {model.held_out.every}; {kept}")
    session = state.get("session") or {}
    if "after" in session and (lines := list(accuracy_lines(session))):
        for line in ("accuracy in the last session of `dualnet learn`:", *lines):
            print_line(line)
    rows = model.learner.class_mask.tolist()
    for number, row in enumerate(rows):
        names = ", ".join(name for name, is_in in zip(model.class_names, row, strict=True) if is_in)
        print_line(f"task {number}: {names}" if len(rows) > 1 else f"classes: {names}")
    if model.unfinished:
        show_warning(model.unfinished)
