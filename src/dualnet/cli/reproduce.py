"""`dualnet reproduce`: run a result table of the paper and compare it with the published values."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from dualnet import reproduce
from dualnet.cli.run import run_rows
from dualnet.cli.terminal import fail, print_line, print_rich
from dualnet.experiments.experiment import command_options
from dualnet.experiments.run_folder import check_out
from dualnet.reproduce.table_file import TableRow


def main(arguments: argparse.Namespace, rest: list[str]) -> int:
    table = reproduce.read_rows(arguments.table or "all", arguments.settings)
    rows = reproduce.select(table, arguments.rows)
    if rest and (arguments.list or arguments.ledger_only):
        raise ValueError(f"{rest[0]}: --list and --ledger-only run nothing and accept no experiment options")
    if arguments.list:
        for row in rows:
            print_line(row.name)
        return 0
    if arguments.table is None:
        raise ValueError(f"TABLE is missing; choose one of {', '.join(reproduce.shipped_tables())}, or all")
    out: Path = arguments.out or Path("runs", "reproduce" if arguments.settings == "authors" else "reproduce-paper")
    check_out(out)
    failed: dict[str, list[str]] = {}
    if not arguments.ledger_only:
        options = command_options(rest, arguments.flags)
        to_run = reproduce.rows_to_run(rows, out, arguments.seeds, options)
        failed = run_rows(Path(arguments.table).stem, to_run, out, arguments)
    if arguments.shard:
        print_line(f"{out}: shard {arguments.shard} has ended; the same command without --shard shows the results")
    else:
        show_ledger(table, rows, out, arguments)
    for row, reasons in failed.items():
        fail(f"{row}: {reasons[0]}", 1)
    tried = "the same command tries those again that have not diverged"
    return fail(f"{len(failed)} of {len(rows)} rows failed; {tried}", 1) if failed else 0


def show_ledger(table: Sequence[TableRow], rows: Sequence[TableRow], out: Path, arguments: argparse.Namespace) -> None:
    """Print the selected rows, and write the files, which have all rows, also those that an earlier command has run."""
    ledger = reproduce.make_ledger(table, out, arguments.settings, arguments.margin)
    names = {row.name for row in rows}
    shown = dataclasses.replace(ledger, entries=[entry for entry in ledger.entries if entry.name in names])
    print_rich(reproduce.terminal_view(shown), width=120)
    if out.is_dir():
        folder = reproduce.write(ledger, out, Path(arguments.table).stem)
        print_line(f"{folder}: ledger.md, ledger.json, report.html")
