"""`dualnet run`: run an experiment with one or more seeds."""

import argparse
from pathlib import Path

from rich.console import Console

from dualnet import machine
from dualnet.cli.terminal import fail, print_line
from dualnet.experiments import experiment, runner
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.run import SeedsDivergedError
from dualnet.experiments.run_folder import check_out
from dualnet.options import check_absent

QUICK_SIZE, QUICK_UPDATES = 48, 2  # input size of the networks in pixels, updates per batch


def main(arguments: argparse.Namespace, rest: list[str]) -> int:
    options = experiment.command_options(rest, arguments.flags)
    if arguments.seeds is not None:
        check_absent(options, seed="--seeds already selects the seeds; give only one of the two")
    chosen = experiment.read(arguments.experiment, options)
    device = machine.choose_device(arguments.device)
    out: Path = arguments.out or Path("runs") / chosen.name
    check_out(out)
    folders = {seed: out / f"seed-{seed}" for seed in arguments.seeds or [chosen.seed]}
    try:
        faster = faster_options(chosen) if device.type == "cpu" else ""
        finished_before = runner.run(chosen, folders, device, RunDisplay(Console(stderr=True), faster))
    except SeedsDivergedError as error:
        for reason in error.reasons.values():
            fail(reason, 1)
        if len(error.reasons) < len(folders):
            print_line(f"{out}: the other seeds are finished; `dualnet report {out}` shows the result")
        return 1
    for seed in finished_before:
        print_line(f"{folders[seed]}: already finished, nothing to do")
    print_line(f"{out}: finished; `dualnet report {out}` shows the result")
    return 0


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
