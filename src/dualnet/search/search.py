"""Runs a search stage by stage: each stage starts from the best point of the stage before it."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Self

import torch
import yaml

from dualnet import atomic
from dualnet.experiments.record import RESULT_NEUTRAL_OPTIONS
from dualnet.experiments.run_folder import RunFolder, environment
from dualnet.experiments.runner import BenchmarkCache, checked_folders, seed_groups, stream_of
from dualnet.experiments.stop import Stop, StopRequested
from dualnet.jobs.job import Job, JobResult
from dualnet.jobs.local_pool import LocalPool, num_jobs, num_threads
from dualnet.options import flat
from dualnet.search.display import SearchDisplay
from dualnet.search.plan import SearchPlan, options_text
from dualnet.search.point import Point, make_point, read_outcome, read_search_file, shorten_names, write_failure


class NothingChosenError(RuntimeError):
    """Every point of a stage failed."""


class Search:
    """A plan and its folder, which holds search.json, chosen.yaml, and the run folders below points/."""

    def __init__(
        self,
        plan: SearchPlan,
        out: Path,
        device: torch.device,
        jobs: int | None = None,
        display: SearchDisplay | None = None,
    ) -> None:
        self.plan, self.out, self.device, self.display = plan, out, device, display or SearchDisplay()
        self.jobs = num_jobs(device.type, jobs)
        self.file = out / "search.json"
        self.log_file = out / "processes.log"  # output of the processes, including tracebacks
        self.stages: list[list[Point]] = []
        self.chosen: list[Point] = []  # by stage
        self.failures: dict[Path, str] = {}  # reasons by run folder; the next call runs these again
        self.benchmarks = BenchmarkCache(validation=True)

    def run(self) -> Self:
        """Run the search, or resume it; finished runs are kept. Raises StopRequested, NothingChosenError."""
        experiments = list(chain.from_iterable(self.plan.experiments()))
        for experiment in experiments:  # each is checked by its learner before the first one runs
            stream_of(experiment, self.benchmarks.get(experiment.ordered_benchmark), self.device)
        values = flat(experiments[0].mapping())
        self.common = {option: value for option, value in values.items() if option not in self.plan.varied}
        threads = num_threads(self.device.type)
        self.environment = environment(self.device) | {"threads": threads, "processes": self.jobs}
        with RunFolder(self.out).locked():
            self.check_same_search()
            with LocalPool(self.jobs, threads, self.log_file) as pool:
                for number in range(len(self.plan.stages)):
                    self.run_stage(number, pool)
            self.write_chosen()
        return self

    def check_same_search(self) -> None:
        """Raises ValueError if the folder holds another search. Values, seeds and stages may have been added."""
        saved = read_search_file(self.file)
        device = saved["environment"].get("device", self.device.type)
        if device != self.device.type:
            remedy = f"resume it with --device {device}, or choose another --out"
            raise ValueError(f"{self.out}: the search was started on {device}; {remedy}")
        options = saved["experiment"]
        for option, value in self.common.items():
            if options.get(option, value) != value and option not in RESULT_NEUTRAL_OPTIONS:
                what = f"{option} is {options[option]} there, {value} here"
                raise ValueError(f"{self.out}: holds another search ({what}); choose another --out")

    def run_stage(self, number: int, pool: LocalPool) -> None:
        points = self.points(number)
        self.stages.append(points)
        self.run_points(
            [point for point in points if point.experiment], f"stage {number + 1}/{len(self.plan.stages)}", pool
        )
        best = min(points, key=lambda point: point.rank(self.plan.metric))
        if best.mean is None:
            log = f"; see {self.log_file}" if self.failures else ""
            first = f"{options_text(best.options)}: {best.failed}"
            raise NothingChosenError(f"{self.out}: every point failed; {first}{log}")
        self.chosen.append(best)
        self.write()

    def points(self, number: int) -> list[Point]:
        """The points of a stage with the values chosen before; invalid combinations come last."""
        chosen = self.chosen[-1].written if self.chosen else {}
        points, invalid = [], []
        for options in self.plan.stages[number]:
            try:
                points.append(make_point(self.plan, chosen | options))
            except ValueError as error:
                invalid.append(Point(chosen | options, None, chosen | options, failed=str(error)))
        return points + invalid

    def run_points(self, points: Sequence[Point], title: str, pool: LocalPool) -> None:
        jobs = list(self.pending_jobs(points))
        if jobs:
            (self.out / "chosen.yaml").unlink(missing_ok=True)  # it exists only while the search is complete
        self.update(points)
        self.display.begin(title, sum(len(job.folders) for job in jobs), len(points) * len(self.plan.seeds))
        try:
            with Stop() as stop:
                for job, result in pool.run(jobs, stop):
                    self.record(job, result)
                    self.update(points)
                if not all(point.is_done for point in points):
                    raise StopRequested(f"{self.out}: stopped; all runs are saved, and the same command resumes them")
        finally:
            self.display.end()

    def pending_jobs(self, points: Sequence[Point]) -> Iterator[Job]:
        """Jobs for the seeds that have neither finished nor diverged."""
        for point in points:
            assert point.experiment is not None
            folders = point.folders(self.out, self.plan.seeds)
            checked_folders(point.experiment, folders, self.benchmarks)
            todo = {seed: folder for seed, folder in folders.items() if not read_outcome(folder)}
            name, mapping = options_text(shorten_names(point.options)), point.experiment.mapping()
            for group in seed_groups(todo, self.device.type):
                yield Job(name, mapping, group, self.device.type, validation=True)

    def record(self, job: Job, result: JobResult) -> None:
        """Record failures of a job that has ended, and print the outcome of each of its seeds."""
        for seed, folder in job.folders.items():
            if seed in result.diverged:
                write_failure(folder, result.diverged[seed])
            elif result.status == "failed" and not read_outcome(folder):
                self.failures[folder] = result.reason
            outcome = read_outcome(folder) or self.failures.get(folder)
            if isinstance(outcome, dict):
                value = outcome["metrics"][self.plan.metric]
                figure = "-" if value is None else f"{value:.2f}"
                self.display.run_ended(f"{job.name}, seed {seed}: {self.plan.metric} {figure}")
            elif outcome:
                self.display.run_ended(f"{job.name}, seed {seed}: failed, {outcome}")

    def update(self, points: Sequence[Point]) -> None:
        """Read the results available so far, and write search.json."""
        for point in points:
            if not point.is_done:
                point.update(self.out, self.plan, self.failures)
        self.write()

    def write(self) -> None:
        chosen = [point.options for point in self.chosen]
        complete = len(chosen) == len(self.plan.stages)
        stages = zip_longest(self.stages, chosen)
        content = {
            "name": self.plan.name,
            "metric": self.plan.metric,
            "seeds": self.plan.seeds,
            "complete": complete,
            "chosen": chosen[-1] if complete else None,
            "stages": [{"points": [point.json() for point in points], "chosen": best} for points, best in stages],
            "experiment": self.common,
            "environment": self.environment,
        }
        atomic.write(self.file, json.dumps(content, indent=1) + "\n")

    def write_chosen(self) -> None:
        """Write the chosen experiment in full, for `dualnet run`."""
        chosen = self.chosen[-1]
        assert chosen.experiment is not None
        figure = f"{self.plan.metric} {chosen.mean:.2f}" + (f" ± {chosen.spread:.2f}" if chosen.spread else "")
        seeds = ", ".join(map(str, self.plan.seeds))
        head = f"# Chosen by `dualnet search {self.plan.name}` on validation tasks: {figure}, seeds {seeds}."
        content = {**chosen.experiment.mapping(), "name": f"{self.plan.name}-chosen"}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        atomic.write(self.out / "chosen.yaml", f"{head}\n{text}")
