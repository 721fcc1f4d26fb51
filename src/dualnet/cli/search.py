"""`dualnet search`: options are chosen on validation tasks."""

import argparse
from pathlib import Path

from rich.console import Console

from dualnet import engine
from dualnet.cli.terminal import fail, say, show
from dualnet.runs.experiment import command_options
from dualnet.runs.run_folder import check_out
from dualnet.search import NothingChosenError, read_plan, search
from dualnet.search.display import SearchDisplay, stage_table


def main(arguments: argparse.Namespace, words: list[str]) -> int:
    plan = read_plan(arguments.search, command_options(words, arguments.flags), arguments.seeds or ())
    device = engine.choose_device(arguments.device)
    out: Path = arguments.out or Path("runs") / f"search-{plan.name}"
    check_out(out)
    try:
        found = search(plan, out, device, arguments.jobs, SearchDisplay(Console(stderr=True)))
    except NothingChosenError as error:
        return fail(str(error), 1)
    for number, (points, chosen) in enumerate(zip(found.stages, found.chosen, strict=True), 1):
        show(stage_table(f"{plan.name}, stage {number} of {len(found.stages)}", points, chosen, plan.metric), width=140)
    say(f"{out}: finished; `dualnet run {out / 'chosen.yaml'}` evaluates what was chosen")
    if not found.failures:
        return 0
    reason = f"{len(found.failures)} runs failed for other reasons than their options; see {found.log_file}"
    return fail(f"{out}: {reason}; the same command tries them again", 1)
