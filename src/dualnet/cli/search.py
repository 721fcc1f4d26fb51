"""`dualnet search`: options are chosen on validation tasks."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from dualnet import engine
from dualnet.cli.terminal import fail, say, show
from dualnet.runs import experiment
from dualnet.runs.run_folder import check_out
from dualnet.runs.stop import StopAsked
from dualnet.search import NothingChosenError, read_plan, search
from dualnet.search.progress import SearchDisplay, tables


def main(arguments: argparse.Namespace, rest: list[str]) -> int:
    options = experiment.command_options(rest, "out", "seeds", "jobs", "device")
    plan = read_plan(arguments.search, options, arguments.seeds or ())
    device = engine.choose_device(arguments.device)
    out: Path = arguments.out or Path("runs") / f"search-{plan.name}"
    check_out(out)
    try:
        found = search(plan, out, device, arguments.jobs, SearchDisplay(Console(stderr=True)))
    except StopAsked as stopped:
        return fail(str(stopped), 130)
    except NothingChosenError as error:
        return fail(str(error), 1)
    for table in tables(found):
        show(table, width=140)
    say(f"{out}: finished; `dualnet run {out / 'chosen.yaml'}` evaluates what was chosen")
    if found.troubles:
        reason = f"{len(found.troubles)} runs failed for other reasons than their options; see {found.log_file}"
        return fail(f"{out}: {reason}; the same command tries them again", 1)
    return 0
