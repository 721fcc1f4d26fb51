"""Runs the missing seeds of rows in separate processes, so that a row that fails does not stop the others."""

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dualnet.experiments.runner import BenchmarkCache, checked_folders, seed_groups
from dualnet.experiments.stop import Stop, StopRequested
from dualnet.jobs.job import Job
from dualnet.jobs.local_pool import LocalPool, num_threads
from dualnet.options import check_absent
from dualnet.reproduce.table import TableRow
from dualnet.text import join_lines


def run_rows(
    rows: Sequence[TableRow],
    seeds: Sequence[int] | None,
    out: Path,
    device: str,
    jobs: int,
    overrides: Mapping[str, Any],
) -> dict[str, str]:
    """Run the seeds without a result, `jobs` at a time. Returns the reasons of failures by row.

    Raises ValueError if an option of a row is invalid or no row can run, and StopRequested once all jobs have stopped.
    """
    check_absent(
        overrides,
        seed="a table runs every row with its own seeds; use --seeds",
        name="every row of a table has its own name; use --out for another folder",
    )
    wanted = [(row, row.experiment(overrides), row_seeds) for row, row_seeds in merge_shared_runs(rows, seeds).values()]
    todo: list[Job] = []
    failed: dict[str, str] = {}
    benchmarks = BenchmarkCache()
    for row, experiment, row_seeds in wanted:
        try:
            folders = {seed: out / row.runs_of / f"seed-{seed}" for seed in row_seeds}
            run_folders = checked_folders(experiment, folders, benchmarks)
            missing = {seed: folder.path for seed, folder in run_folders.items() if not folder.finished}
            todo += [Job(row.name, experiment.mapping(), seeds, device) for seeds in seed_groups(missing, device)]
        except Exception as error:
            if not isinstance(error, ValueError | OSError):
                traceback.print_exc()
            failed[row.name] = join_lines(error)
    if len(failed) == len(wanted):
        name, reason = next(iter(failed.items()))
        raise ValueError(f"{name}: {reason}")
    with Stop() as stop, LocalPool(jobs, num_threads(device) if jobs > 1 else None) as pool:
        failed |= {job.name: result.reason for job, result in pool.run(todo, stop) if result.reason}
        if stop.requested:
            raise StopRequested("stopped; all runs are saved, and the same command resumes them")
    return failed


def merge_shared_runs(rows: Sequence[TableRow], seeds: Sequence[int] | None) -> dict[str, tuple[TableRow, list[int]]]:
    """The seeds to run, by the row that owns the runs: rows that share runs may ask for different numbers of seeds."""
    found: dict[str, tuple[TableRow, list[int]]] = {}
    for row in rows:
        first, known = found.get(row.runs_of, (row, []))
        more = [seed for seed in seeds or range(row.num_seeds) if seed not in known]
        found[row.runs_of] = first, known + more
    return found
