"""Rows of experiments: which of their runs are missing, in which jobs these run, and what came out."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dualnet.experiments.experiment import Experiment
from dualnet.experiments.record import RESULT_FILE, read_result
from dualnet.experiments.run_folder import RunFolder
from dualnet.experiments.runner import BenchmarkCache, checked_folders, steps_key, streams_of
from dualnet.experiments.stop import Stop, StopRequested
from dualnet.jobs.display import RowsDisplay
from dualnet.jobs.job import Executor, Job, JobResult
from dualnet.jobs.shard import Shard
from dualnet.text import join_lines

SIDE_BY_SIDE = {"cpu": 1, "cuda": 5}  # runs in a job: more than five on a GPU take longer and finish no sooner

Outcome = dict[str, Any] | str  # the result of a run, or the reason why it failed


@dataclass(frozen=True)
class Row:
    """An experiment and its seeds, of a grid or a table."""

    name: str  # for messages
    experiment: Experiment
    seeds: Sequence[int]
    folder: Path

    @property
    def runs(self) -> dict[Path, Experiment]:
        """The experiment with each seed, by run folder."""
        return {self.folder / f"seed-{seed}": self.experiment.with_seed(seed) for seed in self.seeds}


class RowRunner:
    """Runs the missing runs of rows: those that have neither finished nor diverged.

    Runs with the same steps are trained side by side, also those of different rows. A run that fails otherwise, such
    as by a process that dies, does not stop the others, and the next call tries it again.
    """

    def __init__(
        self,
        executor: Executor,
        device: torch.device,
        side_by_side: int | None = None,
        display: RowsDisplay | None = None,
        benchmarks: BenchmarkCache | None = None,
        metric: str = "ACC",
        shard: Shard | None = None,
    ) -> None:
        self.executor, self.device = executor, device
        self.side_by_side = side_by_side or SIDE_BY_SIDE[device.type]
        self.display, self.benchmarks = display or RowsDisplay(), benchmarks or BenchmarkCache()
        self.metric = metric  # shown when a run ends
        self.shard = shard  # runs only these, whatever is missing: shards at the same time have no run in common
        self.failures: dict[Path, str] = {}  # reasons by run folder; the next call runs these again

    def run(self, title: str, rows: Sequence[Row], changed: Callable[[], None] = lambda: None) -> None:
        """Run what is missing. `changed` is called before the first job and after each.

        Raises ValueError if no row can run, and StopRequested once all jobs have saved their state.
        """
        names = {folder: f"{row.name}, seed {run.seed}" for row in rows for folder, run in row.runs.items()}
        missing = self.missing(rows)
        if self.shard:
            names = {
                folder: name for i, (folder, name) in enumerate(names.items()) if self.shard.has(i // self.side_by_side)
            }
            missing = {folder: experiment for folder, experiment in missing.items() if folder in names}
        changed()
        done = sum(folder not in missing and folder not in self.failures for folder in names)
        self.display.begin(title, len(missing), done + len(missing))
        try:
            with Stop() as stop:
                for job in self.jobs(missing):
                    self.executor.submit(job)
                for job, result in self.executor.collect(stop):
                    self.record(job, result, names)
                    changed()
                if stop.requested:
                    raise StopRequested("stopped; all runs are saved, and the same command resumes them")
        finally:
            self.display.end()

    def missing(self, rows: Sequence[Row]) -> dict[Path, Experiment]:
        """The runs without an outcome. Each row is checked: that of a row that cannot run is the reason."""
        missing: dict[Path, Experiment] = {}
        reasons = []
        for row in rows:
            try:
                checked_folders(row.runs, self.benchmarks)
                todo = {folder: run for folder, run in row.runs.items() if not read_outcome(folder)}
                streams_of(todo, self.benchmarks, self.device)
                missing |= todo
            except Exception as error:
                if not isinstance(error, ValueError | OSError):
                    traceback.print_exc()
                reasons.append(f"{row.name}: {join_lines(error)}")
                self.failures |= dict.fromkeys(row.runs, join_lines(error))
        if reasons and len(reasons) == len(rows):
            raise ValueError(reasons[0])
        return missing

    def jobs(self, missing: Mapping[Path, Experiment]) -> Iterator[Job]:
        """Groups of at most `side_by_side` runs with the same steps."""
        alike: dict[str, list[Path]] = {}
        for folder, experiment in missing.items():
            alike.setdefault(steps_key(experiment), []).append(folder)
        for folders in alike.values():
            for first in range(0, len(folders), self.side_by_side):
                group = folders[first : first + self.side_by_side]
                runs = {folder: missing[folder].mapping() for folder in group}
                yield Job(runs, self.device.type, self.benchmarks.validation)

    def record(self, job: Job, result: JobResult, names: Mapping[Path, str]) -> None:
        """Record failures of a job that has ended, and print the outcome of each of its runs."""
        if result.status == "failed" and len(job.runs) > 1:  # one of them, or all together: too large for the memory
            self.display.failed_together(len(job.runs), result.reason)
            for folder, options in job.runs.items():
                self.executor.submit(Job({folder: options}, job.device, job.validation))
            return
        for folder in job.runs:
            if result.status == "failed" and not read_outcome(folder):
                self.failures[folder] = result.reason
            outcome = self.outcome(folder)
            if isinstance(outcome, str):
                self.display.run_ended(f"{names[folder]}: failed, {outcome}")
            elif outcome:
                value = outcome["metrics"].get(self.metric)
                figure = "-" if value is None else f"{value:.2f}"
                self.display.run_ended(f"{names[folder]}: {self.metric} {figure}")

    def outcome(self, folder: Path) -> Outcome | None:
        return read_outcome(folder) or self.failures.get(folder)

    def failed(self, rows: Sequence[Row]) -> dict[str, list[str]]:
        """The reasons of failures, each once, by the name of the row."""
        failed = {}
        for row in rows:
            reasons = [outcome for folder in row.runs if isinstance(outcome := self.outcome(folder), str)]
            if reasons:
                failed[row.name] = list(dict.fromkeys(reasons))
        return failed


def read_outcome(folder: Path) -> Outcome | None:
    """The result of a run, or the reason why it diverged; None if it has neither."""
    if result := read_result(folder / RESULT_FILE):
        return result
    reason = RunFolder(folder).diverged
    return None if reason is None else f"{folder.name}: {reason}"
