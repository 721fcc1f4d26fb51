"""`dualnet reproduce`: a result table, and its comparison with the published one."""

from __future__ import annotations

import argparse
from pathlib import Path

from dualnet import engine, reproduce
from dualnet.cli.flags import refuse
from dualnet.cli.terminal import fail, say, show
from dualnet.runs.experiment import command_options
from dualnet.runs.run_folder import check_out
from dualnet.runs.stop import StopAsked

FLAGS = ("rows", "seeds", "out", "device", "settings", "jobs", "margin", "ledger-only", "list")


def main(arguments: argparse.Namespace, rest: list[str]) -> int:
    tables = reproduce.read_tables(arguments.table or "all", arguments.settings)
    rows = reproduce.select([row for table in tables for row in table.rows], arguments.rows)
    if arguments.list:
        refuse(rest, "--list runs nothing and takes no options of experiments")
        for row in rows:
            say(row.name)
        return 0
    if arguments.table is None:
        raise ValueError(f"which table? There are {', '.join(reproduce.shipped_tables())} and all")
    out: Path = arguments.out or Path("runs", "reproduce" if arguments.settings == "authors" else "reproduce-paper")
    check_out(out)
    failed: dict[str, str] = {}
    if arguments.ledger_only:
        refuse(rest, "--ledger-only runs nothing and takes no options of experiments")
    else:
        options = command_options(rest, *FLAGS)
        device = engine.choose_device(arguments.device).type
        try:
            failed = reproduce.run_rows(rows, arguments.seeds, out, device, arguments.jobs, options)
        except StopAsked as stopped:
            return fail(str(stopped), 130)
    ledger = reproduce.make_ledger(tables, rows, out, arguments.settings, arguments.margin)
    show(reproduce.terminal_view(ledger), width=120)
    if out.is_dir():
        folder = reproduce.write(ledger, out, tables[0].name if len(tables) == 1 else "all")
        say(f"{folder}: ledger.md, ledger.json, report.html")
    for row, reason in failed.items():
        fail(f"{row}: {reason}", 1)
    return fail(f"{len(failed)} of {len(rows)} rows failed; the same command tries them again", 1) if failed else 0
