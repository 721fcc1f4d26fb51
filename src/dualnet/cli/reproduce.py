"""`dualnet reproduce`: a result table, and its comparison with the published one."""

import argparse
from pathlib import Path

from dualnet import engine, reproduce
from dualnet.cli.terminal import fail, say, show
from dualnet.runs.experiment import command_options
from dualnet.runs.run_folder import check_out


def main(arguments: argparse.Namespace, words: list[str]) -> int:
    rows = reproduce.select(reproduce.read_rows(arguments.table or "all", arguments.settings), arguments.rows)
    if words and (arguments.list or arguments.ledger_only):
        raise ValueError(f"{words[0]}: --list and --ledger-only run nothing and take no options of experiments")
    if arguments.list:
        for row in rows:
            say(row.name)
        return 0
    if arguments.table is None:
        raise ValueError(f"which table? There are {', '.join(reproduce.shipped_tables())} and all")
    out: Path = arguments.out or Path("runs", "reproduce" if arguments.settings == "authors" else "reproduce-paper")
    check_out(out)
    failed: dict[str, str] = {}
    if not arguments.ledger_only:
        options = command_options(words, arguments.flags)
        device = engine.choose_device(arguments.device).type
        failed = reproduce.run_rows(rows, arguments.seeds, out, device, arguments.jobs, options)
    ledger = reproduce.make_ledger(rows, out, arguments.settings, arguments.margin)
    show(reproduce.terminal_view(ledger), width=120)
    if out.is_dir():
        folder = reproduce.write(ledger, out, Path(arguments.table).stem)
        say(f"{folder}: ledger.md, ledger.json, report.html")
    for row, reason in failed.items():
        fail(f"{row}: {reason}", 1)
    return fail(f"{len(failed)} of {len(rows)} rows failed; the same command tries them again", 1) if failed else 0
