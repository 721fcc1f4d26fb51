"""Reproduces the paper's result tables: runs missing seeds and compares the results with the published ones."""

from pathlib import Path

from dualnet import atomic
from dualnet.experiments.record import EXPERIMENT_FILE
from dualnet.report import report
from dualnet.reproduce.ledger import Ledger, make_ledger, seed_folders
from dualnet.reproduce.table_file import read_rows, rows_to_run, select, shipped_tables
from dualnet.reproduce.views import json_text, markdown_page, terminal_view


def write(ledger: Ledger, out: Path, table: str) -> Path:
    """Write ledger.md, ledger.json and, if there are any runs, their report. Returns the folder."""
    folder = out / table
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write(folder / "ledger.md", markdown_page(ledger))
    atomic.write(folder / "ledger.json", json_text(ledger))
    runs = [path for entry in ledger.entries for path in seed_folders(out / entry.runs_of)]
    if started := [path for path in dict.fromkeys(runs) if (path / EXPERIMENT_FILE).exists()]:
        report(started, folder)
    return folder


__all__ = ["make_ledger", "read_rows", "rows_to_run", "select", "shipped_tables", "terminal_view", "write"]
