"""`dualnet show`: a summary of a run, or the classes of a saved model."""

import argparse

from dualnet.cli.terminal import print_line, print_rich
from dualnet.report.views import run_view
from dualnet.runs.record import EXPERIMENT_FILE, MODEL_FILE


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    if (arguments.run / EXPERIMENT_FILE).is_file() or not (arguments.run / MODEL_FILE).is_file():
        print_rich(run_view(arguments.run), width=100)
        return
    from dualnet.runs.model import load  # imports PyTorch, which is slow and not needed for runs

    model = load(arguments.run, trust=arguments.trust)
    print_line(repr(model))
    rows = model.learner.class_mask.tolist()
    for number, row in enumerate(rows):
        names = ", ".join(name for name, is_in in zip(model.class_names, row, strict=True) if is_in)
        print_line(f"task {number}: {names}" if len(rows) > 1 else f"classes: {names}")
