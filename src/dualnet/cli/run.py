"""`dualnet run`: run an experiment with one or more seeds."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from dualnet import machine
from dualnet.cli.terminal import fail, print_line
from dualnet.experiments import experiment, runner
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.run import RunsDivergedError
from dualnet.experiments.run_folder import check_out
from dualnet.jobs.display import RowsDisplay
from dualnet.jobs.placement import Placement
from dualnet.jobs.rows import Row, RowRunner
from dualnet.options import check_absent

QUICK_SIZE, QUICK_UPDATES = 48, 2  # input size of the networks in pixels, updates per batch


def main(arguments: argparse.Namespace, rest: list[str]) -> int:
    options = experiment.command_options(rest, arguments.flags)
    if arguments.seeds is not None:
        check_absent(options, seed="--seeds already selects the seeds; give only one of the two")
    chosen = experiment.read(arguments.experiment, options)
    out: Path = arguments.out or Path("runs") / chosen.name
    check_out(out)
    row = Row(chosen.name, chosen, arguments.seeds or [chosen.seed], out)
    if len(row.seeds) == 1 and arguments.on == "local":
        failed = run_here(row, machine.choose_device(arguments.device))
    else:
        failed = [f"{out}: {reason}" for reason in run_rows(row.name, [row], out, arguments).get(row.name, [])]
    for line in failed:
        fail(line, 1)
    print_line(f"{out}: {'not all ' if failed else ''}finished; `dualnet report {out}` shows the result")
    return 1 if failed else 0


def run_here(row: Row, device: torch.device) -> list[str]:
    """Run a row of one seed in this process. Returns a line if it has diverged."""
    faster = faster_options(row.experiment) if device.type == "cpu" else ""
    try:
        for folder in runner.run(row.runs, device, RunDisplay(Console(stderr=True), faster)):
            print_line(f"{folder}: already finished, nothing to do")
    except RunsDivergedError as error:
        return error.lines
    return []


def run_rows(title: str, rows: Sequence[Row], out: Path, arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Run what is missing. Returns the reasons of failures by row."""
    placement = placement_of(arguments)
    device = placement.device(arguments.device)
    display = RowsDisplay(Console(stderr=True), bar=False)  # each process shows its own progress
    with placement.executor(device.type, out) as pool:
        runner = RowRunner(pool, device, placement.side_by_side, display, shard=placement.shard)
        runner.run(title, rows)
    return runner.failed(rows)


def placement_of(arguments: argparse.Namespace) -> Placement:
    names = {field.name for field in dataclasses.fields(Placement)}
    return Placement(**{name: value for name, value in vars(arguments).items() if name in names})


def faster_options(chosen: experiment.Experiment) -> str:
    """Options that make the run faster at little loss of accuracy (docs/benchmarks.md); they need another --out.

    They reduce the input size and the number of updates, each of which accounts for half of the cost.
    """
    side = "input_size" if getattr(chosen.benchmark, "input_size", None) else "image_size"
    sections = (("benchmark", side, QUICK_SIZE), ("learner", "updates", QUICK_UPDATES))
    options = [
        f"--{section}.{option} {quick}"
        for section, option, quick in sections
        if (getattr(getattr(chosen, section), option, None) or 0) > quick
    ]
    return " ".join([*options, "--out ANOTHER"]) if options else ""
