"""Runs a search: the points of one stage after the other, each stage around the best point of the one before."""

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import torch
import yaml

from dualnet import atomic
from dualnet.options import flat
from dualnet.runs.experiment import Experiment
from dualnet.runs.jobs import Job, JobPool, JobResult
from dualnet.runs.local_pool import LocalPool, num_jobs, num_threads
from dualnet.runs.record import RESULT_NEUTRAL_OPTIONS
from dualnet.runs.run_folder import RunFolder, environment
from dualnet.runs.runner import Benchmarks, checked_folders, seed_groups, stream_of
from dualnet.runs.stop import Stop, StopRequested
from dualnet.search.plan import SearchPlan, said
from dualnet.search.point import Point, left_in, point_of, read_own, short, write_failure
from dualnet.search.progress import SearchDisplay


class NothingChosenError(RuntimeError):
    """Every point of a stage has failed."""


class Search:
    """A plan being carried out in a folder: search.json, chosen.yaml, and the run folders below points/."""

    def __init__(
        self, plan: SearchPlan, out: Path, device: torch.device, jobs: int | None, display: SearchDisplay
    ) -> None:
        self.plan, self.out, self.device, self.display = plan, out, device, display
        self.jobs = num_jobs(device.type, jobs)
        self.file = out / "search.json"
        self.log_file = out / "processes.log"  # what the processes print, with the traceback of a learner that raised
        self.stages: list[list[Point]] = []
        self.chosen: list[Point] = []  # by stage
        self.troubles: dict[Path, str] = {}  # run folders that failed now and may not the next time
        self.benchmarks = Benchmarks(validation=True)

    def run(self) -> None:
        values = flat(self.check_points()[0].mapping())
        self.common = {option: value for option, value in values.items() if option not in self.plan.varied}
        threads = num_threads(self.device.type)
        self.environment = environment(self.device) | {"threads": threads, "processes": self.jobs}
        with RunFolder(self.out).locked():
            self.check_same()
            with LocalPool(self.jobs, threads, self.log_file) as pool:
                for number in range(len(self.plan.stages)):
                    self.run_stage(number, pool)
            self.write_chosen()

    def check_points(self) -> list[Experiment]:
        """All experiments, each accepted by its learner, before the first one runs."""
        stages = enumerate(self.plan.stages)
        found = [self.plan.experiment(self.plan.before(i) | options) for i, stage in stages for options in stage]
        for experiment in found:
            stream_of(experiment, self.benchmarks.get(experiment.benchmark), self.device)
        return found

    def run_stage(self, number: int, pool: JobPool) -> None:
        points = self.points(number)
        self.stages.append(points)
        self.run_points(
            [point for point in points if point.experiment], f"stage {number + 1}/{len(self.plan.stages)}", pool
        )
        best = min(points, key=lambda point: point.rank(self.plan.metric))
        if best.mean is None:
            more = f"; see {self.log_file}" if self.troubles else ""
            raise NothingChosenError(f"{self.out}: every point has failed; {said(best.options)}: {best.failed}{more}")
        self.chosen.append(best)
        self.write()

    def points(self, number: int) -> list[Point]:
        """The points of a stage, around what was chosen before; those refused come last."""
        before = self.chosen[-1].written if self.chosen else {}
        points, refused = [], []
        for options in self.plan.stages[number]:
            try:
                points.append(point_of(self.plan, before | options))
            except ValueError as error:
                refused.append(Point(before | options, None, before | options, failed=str(error)))
        return points + refused

    def run_points(self, points: Sequence[Point], title: str, pool: JobPool) -> None:
        jobs = list(self.unsettled(points))
        if jobs:
            (self.out / "chosen.yaml").unlink(missing_ok=True)  # it exists only while the search is complete
        self.update(points)
        self.display.begin(title, sum(len(job.folders) for job in jobs), len(points) * len(self.plan.seeds))
        try:
            with Stop() as stop:
                for job, result in pool.run(jobs, stop):
                    self.settle(job, result)
                    self.update(points)
                if not all(point.settled for point in points):
                    raise StopRequested(f"{self.out}: stopped; all runs are saved, and the same command resumes them")
        finally:
            self.display.end()

    def unsettled(self, points: Sequence[Point]) -> Iterator[Job]:
        for point in points:
            assert point.experiment is not None
            folders = point.folders(self.out, self.plan.seeds)
            checked_folders(point.experiment, folders, self.benchmarks)
            todo = {seed: folder for seed, folder in folders.items() if not left_in(folder)}
            name, mapping, device = said(short(point.options)), point.experiment.mapping(), self.device.type
            for group in seed_groups(todo, device):
                yield Job(name, mapping, group, device, validation=True)

    def settle(self, job: Job, result: JobResult) -> None:
        for seed, folder in job.folders.items():
            if seed in result.diverged:
                write_failure(folder, result.diverged[seed])
            elif result.status == "failed" and not left_in(folder):
                self.troubles[folder] = result.reason
            left = left_in(folder) or self.troubles.get(folder)
            if isinstance(left, dict):
                value = left["metrics"][self.plan.metric]
                figure = "-" if value is None else f"{value:.2f}"
                self.display.settled(f"{job.name}, seed {seed}: {self.plan.metric} {figure}")
            elif left:
                self.display.settled(f"{job.name}, seed {seed}: failed, {left}")

    def update(self, points: Sequence[Point]) -> None:
        """Read the results that the points have by now, and write search.json."""
        for point in points:
            if not point.settled:
                point.update(self.out, self.plan, self.troubles)
        self.write()

    def check_same(self) -> None:
        """Raises ValueError if the folder holds another search. More values, seeds and stages are the same one."""
        there = read_own(self.file) if self.file.exists() else {}
        device = there.get("environment", {}).get("device", self.device.type)
        if device != self.device.type:
            remedy = f"resume it with --device {device}, or choose another --out"
            raise ValueError(f"{self.out}: was begun on {device}; {remedy}")
        before = there.get("experiment", {})
        for option, value in self.common.items():
            if before.get(option, value) != value and option not in RESULT_NEUTRAL_OPTIONS:
                what = f"{option} is {before[option]} there, {value} here"
                raise ValueError(f"{self.out}: holds another search ({what}); choose another --out")

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
        """A whole experiment, for `dualnet run`."""
        chosen = self.chosen[-1]
        assert chosen.experiment is not None
        figure = f"{self.plan.metric} {chosen.mean:.2f}" + (f" ± {chosen.spread:.2f}" if chosen.spread else "")
        seeds = ", ".join(map(str, self.plan.seeds))
        head = f"# Chosen by `dualnet search {self.plan.name}` on validation tasks: {figure}, seeds {seeds}."
        content = {**chosen.experiment.mapping(), "name": f"{self.plan.name}-chosen"}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        atomic.write(self.out / "chosen.yaml", f"{head}\n{text}")


def search(
    plan: SearchPlan, out: Path, device: torch.device, jobs: int | None = None, display: SearchDisplay | None = None
) -> Search:
    """Search on the validation tasks; finished runs are kept. Raises StopRequested, NothingChosenError."""
    found = Search(plan, out, device, jobs, display or SearchDisplay())
    found.run()
    return found
