"""Finds and reads the run folders of a report; damaged runs, runs of a search and replaced runs are left out."""

import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from dualnet.experiments.record import EARLIER, EXPERIMENT_FILE, RESULT_FILE, RunRecord, read_record, with_common_root
from dualnet.text import pluralise


def find_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """All runs at or below the folders, each once, in the order of the folders and then by name.

    Runs of a search are left out: they were evaluated on validation tasks. So are replaced runs of a table's row, whose
    options may be the same as those of the present runs, unless their folder is given.
    """
    run_folders = {folder.resolve(): folder for root in folders for folder in _run_folders(Path(root))}
    if not run_folders:
        below = ", ".join(str(folder) for folder in folders) or "no folder"
        raise ValueError(f"no runs found in {below}; run an experiment first or give the folder that holds its runs")
    runs = readable_runs(run_folders.values())
    results = [run for run in runs if not run.validation]
    if not results:
        raise ValueError(f"{runs[0].folder}: a run of a search, evaluated on validation tasks; see its search.json")
    if left_out := len(runs) - len(results):
        warnings.warn(
            f"{left_out} runs of a search are left out: they were evaluated on validation tasks", stacklevel=2
        )
    return with_common_root(results)


def readable_runs(folders: Iterable[Path]) -> list[RunRecord]:
    """The runs that can be read, with one warning for all others. Raises ValueError if none can be read."""
    runs: list[RunRecord] = []
    damaged: list[str] = []
    for folder in folders:
        try:
            run = read_record(folder)
            _ = run.classes  # read now, so that a damaged file is reported here
            runs.append(run)
        except ValueError as error:
            damaged.append(str(error))
    if damaged and not runs:
        raise ValueError(damaged[0])
    if damaged:
        more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        warnings.warn(f"left out, damaged: {damaged[0]}{more}", stacklevel=2)
    return runs


def _run_folders(root: Path) -> list[Path]:
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder; give a folder that holds runs")
    files = [*root.rglob(EXPERIMENT_FILE), *root.rglob(RESULT_FILE)]
    folders = {file.parent for file in files}
    rows = {folder.parent for folder in folders}
    replaced = {folder for folder in folders if folder.parent.parent.name == EARLIER and folder.parents[2] in rows}
    if replaced:
        left_out = pluralise(len(replaced), "replaced run")
        warnings.warn(f"{left_out} left out; to report on some, give their folder {EARLIER}/NAME", stacklevel=2)
    return sorted(folders - replaced, key=_natural)


def _natural(folder: Path) -> tuple[list[str | float], str]:
    """Sort key that puts seed-2 before seed-10, and lr0.03 before lr0.1."""
    words = re.split(r"(\d+(?:\.\d+)?)", str(folder))  # every second one is a number
    return [float(word) if i % 2 else word for i, word in enumerate(words)], str(folder)
