"""Runs a search: the points of one stage after the other, each stage around the best point of the one before."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from dualnet import atomic
from dualnet.runs.jobs import Benchmarks, Job, JobPool, JobResult, seeds_apart
from dualnet.runs.local_pool import LocalPool, num_jobs, num_threads
from dualnet.runs.record import FREE_TO_CHANGE, flat, mapping_in
from dualnet.runs.run_folder import RunFolder, environment
from dualnet.runs.runner import stream_of
from dualnet.runs.stop import Stop, StopAsked
from dualnet.search.plan import SearchPlan, said
from dualnet.search.point import (
    Outcome,
    Point,
    best,
    failure_of,
    is_settled,
    outcome_of,
    point_of,
    read_own,
    result_of,
    short,
    write_failure,
)
from dualnet.search.progress import SearchDisplay


class NothingChosenError(RuntimeError):
    """Every point of a stage has failed."""


@dataclass
class Stage:
    points: list[Point]
    outcomes: list[Outcome | None]  # by point; None: not settled yet
    refused: list[Outcome]  # values that do not go with what was chosen before
    chosen: Point | None = None

    @property
    def settled(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome is not None]

    def json(self) -> dict[str, Any]:
        """Points that are not settled have their options only."""
        points = [
            {"options": point.options} if outcome is None else asdict(outcome)
            for point, outcome in zip(self.points, self.outcomes, strict=True)
        ]
        points += map(asdict, self.refused)
        return {"points": points, "chosen": self.chosen and self.chosen.options}


@dataclass
class Search:
    """A plan being carried out in a folder: search.json, chosen.yaml, and the run folders below points/."""

    plan: SearchPlan
    out: Path
    device: torch.device
    jobs: int
    display: SearchDisplay
    stages: list[Stage] = field(default_factory=list)
    troubles: dict[Path, str] = field(default_factory=dict)  # run folders that failed now and may not the next time
    benchmarks: Benchmarks = field(default_factory=lambda: Benchmarks(validation=True))

    @property
    def file(self) -> Path:
        return self.out / "search.json"

    @property
    def log_file(self) -> Path:
        """What the processes print, with the traceback of a learner that raised."""
        return self.out / "processes.log"

    def run(self) -> None:
        values = flat(self.check_points()[0].experiment.mapping())
        self.common = {option: value for option, value in values.items() if option not in self.plan.varied}
        threads = num_threads(self.device.type)
        self.environment = environment(self.device) | {"threads": threads, "processes": self.jobs}
        folder = RunFolder(self.out)
        folder.make()
        folder.take_lock()
        try:
            self.check_same()
            with LocalPool(self.jobs, threads, self.log_file) as pool:
                for number in range(len(self.plan.stages)):
                    self.run_stage(number, pool)
            self.write_chosen()
        finally:
            folder.release()

    def check_points(self) -> list[Point]:
        """All points, each accepted by its learner, before the first one runs."""
        stages = enumerate(self.plan.stages)
        points = [point_of(self.plan, self.plan.before(i) | options) for i, stage in stages for options in stage]
        for point in points:
            stream_of(point.experiment, self.benchmarks.get(point.experiment.benchmark), self.device)
        return points

    def run_stage(self, number: int, pool: JobPool) -> None:
        stage = self.stage(number)
        self.stages.append(stage)
        self.run_points(stage, f"stage {number + 1}/{len(self.plan.stages)}", pool)
        choice = best(stage.settled, self.plan.metric)
        if choice is None:
            first = [*stage.settled, *stage.refused][0]
            more = f"; see {self.log_file}" if self.troubles else ""
            raise NothingChosenError(f"{self.out}: every point has failed; {said(first.options)}: {first.failed}{more}")
        stage.chosen = stage.points[choice]
        self.write()

    def stage(self, number: int) -> Stage:
        """The points of a stage, around what was chosen before."""
        before = self.stages[-1].chosen.written if self.stages and self.stages[-1].chosen else {}
        points, refused = [], []
        for options in self.plan.stages[number]:
            try:
                points.append(point_of(self.plan, before | options))
            except ValueError as error:
                refused.append(Outcome(before | options, "", None, None, 0.0, {}, str(error)))
        return Stage(points, [None] * len(points), refused)

    def run_points(self, stage: Stage, title: str, pool: JobPool) -> None:
        jobs = list(self.unsettled(stage.points))
        if jobs:
            (self.out / "chosen.yaml").unlink(missing_ok=True)  # it exists only while the search is complete
        self.update(stage)
        self.display.begin(title, sum(len(job.folders) for job in jobs), len(stage.points) * len(self.plan.seeds))
        try:
            with Stop() as stop:
                for job, result in pool.run(jobs, stop):
                    self.settle(job, result)
                    self.update(stage)
                if None in stage.outcomes:
                    raise StopAsked(f"{self.out}: stopped; all runs are saved, and the same command resumes them")
        finally:
            self.display.end()

    def unsettled(self, points: Sequence[Point]) -> Iterator[Job]:
        for point in points:
            folders = point.folders(self.out, self.plan.seeds)
            self.benchmarks.check_folders(point.experiment, folders)
            todo = {seed: folder for seed, folder in folders.items() if not is_settled(folder)}
            name, mapping, device = said(short(point.options)), point.experiment.mapping(), self.device.type
            for group in seeds_apart(todo, device):  # without checkpoints: the weights of every point fill a disk
                yield Job(name, mapping, group, device, validation=True, keep_checkpoints=False)

    def settle(self, job: Job, result: JobResult) -> None:
        for seed, reason in result.diverged.items():
            write_failure(job.folders[seed], reason)
        for seed, folder in job.folders.items():
            if result.status == "failed" and not is_settled(folder):
                self.troubles[folder] = result.reason
            if figures := result_of(folder).get("metrics"):
                self.display.settled(f"{job.name}, seed {seed}: {self.plan.metric} {show(figures[self.plan.metric])}")
            elif failed := failure_of(folder) or self.troubles.get(folder):
                self.display.settled(f"{job.name}, seed {seed}: failed, {failed}")

    def update(self, stage: Stage) -> None:
        """Read the results that the points have by now, and write search.json."""
        for number, point in enumerate(stage.points):
            if stage.outcomes[number] is None:
                stage.outcomes[number] = outcome_of(point, self.out, self.plan, self.troubles)
        self.write()

    def check_same(self) -> None:
        """Raises ValueError if the folder holds another search. More values, seeds and stages are the same one."""
        there = read_own(self.file) if self.file.exists() else {}
        device = mapping_in(there, "environment").get("device", self.device.type)
        if device != self.device.type:
            raise ValueError(
                f"{self.out}: was begun on {device}; resume it with --device {device}, or choose another --out"
            )
        before = mapping_in(there, "experiment")
        for option, value in self.common.items():
            if before.get(option, value) != value and option not in FREE_TO_CHANGE:
                what = f"{option} is {before[option]} there, {value} here"
                raise ValueError(f"{self.out}: holds another search ({what}); choose another --out")

    def write(self) -> None:
        chosen = self.stages[-1].chosen if len(self.stages) == len(self.plan.stages) else None
        content = {
            "name": self.plan.name,
            "metric": self.plan.metric,
            "seeds": self.plan.seeds,
            "complete": chosen is not None,
            "chosen": chosen and chosen.options,
            "stages": [stage.json() for stage in self.stages],
            "experiment": self.common,
            "environment": self.environment,
        }
        atomic.write(self.file, json.dumps(content, indent=1) + "\n")

    def write_chosen(self) -> None:
        """A whole experiment, for `dualnet run`."""
        last = self.stages[-1]
        assert last.chosen is not None
        outcome = last.outcomes[last.points.index(last.chosen)]
        assert outcome is not None
        figure = f"{self.plan.metric} {show(outcome.mean)}" + (f" ± {show(outcome.spread)}" if outcome.spread else "")
        seeds = ", ".join(map(str, self.plan.seeds))
        head = f"# Chosen by `dualnet search {self.plan.name}` on validation tasks: {figure}, seeds {seeds}."
        content = {**last.chosen.experiment.mapping(), "name": f"{self.plan.name}-chosen"}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        atomic.write(self.out / "chosen.yaml", f"{head}\n{text}")


def search(
    plan: SearchPlan, out: Path, device: torch.device, jobs: int | None = None, display: SearchDisplay | None = None
) -> Search:
    """Search on the validation tasks; finished runs are kept. Raises StopAsked, NothingChosenError."""
    found = Search(plan, out, device, num_jobs(device.type, jobs), display or SearchDisplay())
    found.run()
    return found


def show(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
