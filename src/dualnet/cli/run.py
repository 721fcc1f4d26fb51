"""`dualnet run`: an experiment, for one seed or several."""

import argparse
from pathlib import Path

from rich.console import Console

from dualnet import engine
from dualnet.cli.terminal import fail, say
from dualnet.options import check_absent
from dualnet.runs import experiment, runner
from dualnet.runs.progress import RunDisplay
from dualnet.runs.run import SeedsDivergedError
from dualnet.runs.run_folder import check_out

QUICK_SIZE, QUICK_UPDATES = 48, 2  # the side in pixels that the networks see, the updates per batch


def main(arguments: argparse.Namespace, words: list[str]) -> int:
    options = experiment.command_options(words, arguments.flags)
    if arguments.seeds is not None:
        check_absent(options, seed="--seeds says which seeds to run; leave one of the two out")
    asked = experiment.read(arguments.experiment, options)
    device = engine.choose_device(arguments.device)
    out: Path = arguments.out or Path("runs") / asked.name
    check_out(out)
    folders = {seed: out / f"seed-{seed}" for seed in arguments.seeds or [asked.seed]}
    try:
        quicker = quicker_options(asked) if device.type == "cpu" else ""
        finished_before = runner.run(asked, folders, device, RunDisplay(Console(stderr=True), quicker))
    except SeedsDivergedError as error:
        for reason in error.reasons.values():
            fail(reason, 1)
        if len(error.reasons) < len(folders):
            say(f"{out}: the other seeds are finished; `dualnet report {out}` shows the result")
        return 1
    for seed in finished_before:
        say(f"{folders[seed]}: finished before, nothing to do")
    say(f"{out}: finished; `dualnet report {out}` shows the result")
    return 0


def quicker_options(asked: experiment.Experiment) -> str:
    """Those that make a step cheaper for the least accuracy, as docs/benchmarks.md measures; the run needs a new --out.

    Half of the cost is the pixels that the networks see, half the number of updates.
    """
    side = "input_size" if getattr(asked.benchmark, "input_size", None) else "image_size"
    sections = (("benchmark", side, QUICK_SIZE), ("learner", "updates", QUICK_UPDATES))
    options = [
        f"--{section}.{option} {quick}"
        for section, option, quick in sections
        if (getattr(getattr(asked, section), option, None) or 0) > quick
    ]
    return " ".join([*options, "--out ANOTHER"]) if options else ""
