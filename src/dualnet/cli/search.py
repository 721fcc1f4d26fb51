"""`dualnet search`: choose options on validation tasks by grid search."""

import argparse
from pathlib import Path

from rich.console import Console

from dualnet.cli.run import placement_of
from dualnet.cli.terminal import fail, print_line, print_rich
from dualnet.experiments.experiment import command_options
from dualnet.experiments.run_folder import check_out
from dualnet.jobs.display import RowsDisplay
from dualnet.search import NothingChosenError, Search, read_plan
from dualnet.search.stage_table import stage_table


def main(arguments: argparse.Namespace, rest: list[str]) -> int:
    plan = read_plan(arguments.search, command_options(rest, arguments.flags), arguments.seeds or ())
    out: Path = arguments.out or Path("runs") / f"search-{plan.name}"
    check_out(out)
    placement = placement_of(arguments)
    device = placement.device(arguments.device)
    try:
        search = Search(plan, out, device, placement, RowsDisplay(Console(stderr=True))).run()
    except NothingChosenError as error:
        return fail(str(error), 1)
    for number, (points, chosen) in enumerate(zip(search.stages, search.chosen, strict=False), 1):
        title = f"{plan.name}, stage {number} of {len(search.stages)}"
        print_rich(stage_table(title, points, chosen, plan.metric), width=140)
        print_line("")
    if arguments.shard:
        stages = len(search.stages)
        more = (
            "without --shard writes the choice" if search.complete else "runs more once the other shards are finished"
        )
        print_line(f"{out}: shard {arguments.shard} is finished up to stage {stages}; the same command {more}")
    else:
        print_line(f"{out}: finished; `dualnet run {out / 'chosen.yaml'}` evaluates the chosen options")
    failures = search.rows.failures
    if not failures:
        return 0
    reason = f"{len(failures)} runs failed for reasons other than their options; see {search.log_file}"
    return fail(f"{out}: {reason}; the same command tries them again", 1)
