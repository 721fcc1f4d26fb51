"""Runs what is missing of some rows, in processes: a row that fails leaves the others alone."""

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dualnet.options import check_absent
from dualnet.runs.jobs import Job
from dualnet.runs.local_pool import LocalPool, num_threads
from dualnet.runs.runner import Benchmarks, checked_folders, seed_groups
from dualnet.runs.stop import Stop, StopRequested
from dualnet.text import one_line

from .table import TableRow


def run_rows(
    rows: Sequence[TableRow],
    seeds: Sequence[int] | None,
    out: Path,
    device: str,
    jobs: int,
    overrides: Mapping[str, Any],
) -> dict[str, str]:
    """Run the seeds that have no result yet, `jobs` at a time. Returns what went wrong, by name of the row.

    Raises ValueError if the options of a row are wrong or if no row can run, StopRequested once all jobs have stopped.
    """
    check_absent(
        overrides,
        seed="a table runs every row with its seeds; give --seeds",
        name="the rows of a table have names of their own; give --out for another folder",
    )
    wanted = [(row, row.experiment(overrides), row_seeds) for row, row_seeds in homes(rows, seeds).values()]
    todo: list[Job] = []
    failed: dict[str, str] = {}
    benchmarks = Benchmarks()
    for row, experiment, row_seeds in wanted:
        try:
            folders = {seed: out / row.home / f"seed-{seed}" for seed in row_seeds}
            there = checked_folders(experiment, folders, benchmarks)
            missing = {seed: folder.path for seed, folder in there.items() if not folder.finished}
            todo += [Job(row.name, experiment.mapping(), seeds, device) for seeds in seed_groups(missing, device)]
        except Exception as error:
            if not isinstance(error, ValueError | OSError):
                traceback.print_exc()
            failed[row.name] = one_line(error)
    if len(failed) == len(wanted):
        name, reason = next(iter(failed.items()))
        raise ValueError(f"{name}: {reason}")
    with Stop() as stop, LocalPool(jobs, num_threads(device) if jobs > 1 else None) as pool:
        failed |= {job.name: result.reason for job, result in pool.run(todo, stop) if result.reason}
        if stop.requested:
            raise StopRequested("stopped; all runs are saved, and the same command resumes them")
    return failed


def homes(rows: Sequence[TableRow], seeds: Sequence[int] | None) -> dict[str, tuple[TableRow, list[int]]]:
    """By the row whose runs they are, a row and the seeds: two rows may share their runs, and want more or fewer."""
    found: dict[str, tuple[TableRow, list[int]]] = {}
    for row in rows:
        first, before = found.get(row.home, (row, []))
        more = [seed for seed in seeds or range(row.num_seeds) if seed not in before]
        found[row.home] = first, before + more
    return found
