"""`dualnet search`: choose options on validation tasks by grid search."""

import argparse
from pathlib import Path

from rich.console import Console

from dualnet import machine
from dualnet.cli.terminal import fail, print_line, print_rich
from dualnet.experiments.experiment import command_options
from dualnet.experiments.run_folder import check_out
from dualnet.jobs.display import RowsDisplay
from dualnet.search import NothingChosenError, Search, read_plan
from dualnet.search.stage_table import stage_table


def main(arguments: argparse.Namespace, rest: list[str]) -> int:
    plan = read_plan(arguments.search, command_options(rest, arguments.flags), arguments.seeds or ())
    device = machine.choose_device(arguments.device)
    out: Path = arguments.out or Path("runs") / f"search-{plan.name}"
    check_out(out)
    try:
        search = Search(plan, out, device, arguments.jobs, RowsDisplay(Console(stderr=True)), arguments.side_by_side)
        search.run()
    except NothingChosenError as error:
        return fail(str(error), 1)
    for number, (points, chosen) in enumerate(zip(search.stages, search.chosen, strict=True), 1):
        title = f"{plan.name}, stage {number} of {len(search.stages)}"
        print_rich(stage_table(title, points, chosen, plan.metric), width=140)
        print_line("")
    print_line(f"{out}: finished; `dualnet run {out / 'chosen.yaml'}` evaluates the chosen options")
    failures = search.rows.failures
    if not failures:
        return 0
    reason = f"{len(failures)} runs failed for reasons other than their options; see {search.log_file}"
    return fail(f"{out}: {reason}; the same command tries them again", 1)
