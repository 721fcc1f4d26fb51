"""`dualnet show`: a summary of a run, or the classes of a saved model."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from dualnet.cli.terminal import print_line, print_rich
from dualnet.report.show import run_view
from dualnet.runs.record import EXPERIMENT_FILE


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    if (arguments.run / EXPERIMENT_FILE).is_file() or not (lines := list(model_lines(arguments.run, arguments.trust))):
        print_rich(run_view(arguments.run), width=100)
    else:
        for line in lines:
            print_line(line)
    return 0


def model_lines(folder: Path, trust: bool) -> Iterator[str]:
    """Empty if the folder is not a saved model."""
    from dualnet.runs.model import load  # imports PyTorch, which is slow and not needed for runs
    from dualnet.runs.run_folder import MODEL_FILE

    if (folder / MODEL_FILE).is_file():
        model = load(folder, trust=trust)
        yield repr(model)
        rows = model.learner.class_mask.tolist()
        for number, row in enumerate(rows):
            names = ", ".join(name for name, is_in in zip(model.class_names, row, strict=True) if is_in)
            yield f"task {number}: {names}" if len(rows) > 1 else f"classes: {names}"
