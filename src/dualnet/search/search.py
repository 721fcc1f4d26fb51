"""Runs a search: the points of one stage after the other, each stage from the best of the one before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from dualnet import atomic
from dualnet.data import Benchmark, BenchmarkConfig
from dualnet.runs.run_folder import FREE_TO_CHANGE, RunFolder, environment
from dualnet.runs.runner import stream_of
from dualnet.runs.stop import Stop, StopAsked
from dualnet.search.plan import Options, Plan, said
from dualnet.search.point import (
    Outcome,
    Point,
    best,
    common_options,
    is_settled,
    outcome_of,
    point_of,
    read_failure,
    read_json,
    read_result,
)
from dualnet.search.pool import Job, Pool, num_jobs, num_threads
from dualnet.search.progress import Display, Quiet

Benchmarks = list[tuple[BenchmarkConfig, Benchmark]]


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
            {"options": point.options} if outcome is None else outcome.json()
            for point, outcome in zip(self.points, self.outcomes, strict=True)
        ]
        points += [outcome.json() for outcome in self.refused]
        return {"points": points, "chosen": self.chosen and self.chosen.options}


@dataclass
class Search:
    """A plan at work in a folder: search.json and chosen.yaml, and the run folders below points/."""

    plan: Plan
    out: Path
    device: torch.device
    jobs: int
    display: Display
    stages: list[Stage] = field(default_factory=list)
    troubles: dict[Path, str] = field(default_factory=dict)  # run folders that failed now and may not the next time
    benchmarks: Benchmarks = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.out / "search.json"

    @property
    def log_file(self) -> Path:
        """What the processes say, with the traceback of a learner that raised."""
        return self.out / "processes.log"

    def run(self) -> None:
        points, self.benchmarks = checked_points(self.plan, self.device)
        self.common = common_options(self.plan, points[0])
        self.environment = environment(self.device) | {"threads": num_threads(self.device), "processes": self.jobs}
        folder = RunFolder(self.out)
        folder.make()
        folder.take_lock()
        try:
            self.check_same()
            with Pool(self.jobs, self.device, num_threads(self.device), self.log_file) as pool:
                for number in range(len(self.plan.stages)):
                    self.run_stage(number, pool)
            self.write_chosen()
        finally:
            folder.release()

    def run_stage(self, number: int, pool: Pool) -> None:
        stage = self.stage(number)
        self.stages.append(stage)
        self.run_points(stage, f"stage {number + 1}/{len(self.plan.stages)}", pool)
        choice = best(stage.settled, self.plan.metric)
        if choice is None:
            first = [*stage.settled, *stage.refused][0]
            more = f"; {self.log_file} says more" if self.troubles else ""
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

    def run_points(self, stage: Stage, title: str, pool: Pool) -> None:
        jobs = list(self.unsettled(stage.points))
        if jobs:
            (self.out / "chosen.yaml").unlink(missing_ok=True)  # there once the search is complete, and only then
        self.look(stage)
        self.display.begin(title, sum(len(job.folders) for job in jobs), len(stage.points) * len(self.plan.seeds))
        try:
            with Stop() as stop:
                for job, answer in pool.run(jobs, stop):
                    self.settle(job, answer, stop)
                    self.look(stage)
                if None in stage.outcomes:
                    raise StopAsked(
                        f"{self.out}: stopped; what was done is saved, and the same command goes on from there"
                    )
        finally:
            self.display.end()

    def unsettled(self, points: Sequence[Point]) -> Iterator[Job]:
        """A job for each seed; on CUDA one for all seeds of a point, which go side by side."""
        for point in points:
            todo: dict[int, Path] = {}
            for seed, folder in point.folders(self.out, self.plan.seeds).items():
                RunFolder(folder).check_purpose(validation=True)
                RunFolder(folder).check_same(point.experiment.with_seed(seed))
                if not is_settled(folder):
                    todo[seed] = folder
                if RunFolder(folder).experiment_file.exists():  # figures of other images do not compare
                    RunFolder(folder).check_same_stream(point.experiment, tasks_for(point, self.benchmarks))
            if self.device.type == "cuda":
                yield from [Job(point, todo)] if todo else []
            else:
                yield from (Job(point, {seed: folder}) for seed, folder in todo.items())

    def settle(self, job: Job, answer: dict[str, Any], stop: Stop) -> None:
        if "stopped" in answer and not stop.asked:
            answer = {"trouble": "its process was told to stop"}
        if reason := answer.get("trouble"):
            self.troubles |= {folder: reason for folder in job.folders.values() if not is_settled(folder)}
        for seed, folder in job.folders.items():
            result = read_result(folder)
            failed = None if result else read_failure(folder) or answer.get("trouble")
            if result or failed:
                figure = (
                    f"failed, {failed}" if failed else f"{self.plan.metric} {show(result['metrics'][self.plan.metric])}"
                )
                self.display.settled(f"{said(short(job.point.options))}, seed {seed}: {figure}")

    def look(self, stage: Stage) -> None:
        """Read what the points have left, and write it down."""
        for number, point in enumerate(stage.points):
            if stage.outcomes[number] is None:
                stage.outcomes[number] = outcome_of(point, self.out, self.plan, self.troubles)
        self.write()

    def check_same(self) -> None:
        """Raises ValueError if the folder holds another search. More values, seeds and stages are the same one."""
        there = read_json(self.file)
        if not there:
            return
        device = there["environment"]["device"]
        if device != self.device.type:
            raise ValueError(
                f"{self.out}: was begun on {device}; go on there with --device {device}, or choose another --out"
            )
        for option, value in self.common.items():
            before = there["experiment"].get(option, value)
            if before != value and option not in FREE_TO_CHANGE:
                raise ValueError(
                    f"{self.out}: holds another search ({option} is {before} there, {value} here); choose another --out"
                )

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
        """A whole experiment: `dualnet run` takes it."""
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
    plan: Plan, out: Path, device: torch.device, jobs: int | None = None, display: Display | None = None
) -> Search:
    """Search on the validation tasks; what is finished is left as it is. Raises StopAsked, NothingChosenError."""
    found = Search(plan, out, device, num_jobs(device, jobs), display or Quiet())
    found.run()
    return found


def checked_points(plan: Plan, device: torch.device) -> tuple[list[Point], Benchmarks]:
    """All points, each accepted by its learner, before the first one runs, and their benchmarks, decoded here, once."""
    made: Benchmarks = []
    points = []
    for number, stage in enumerate(plan.stages):
        for options in stage:
            point = point_of(plan, plan.before(number) | options)
            stream_of(point.experiment, tasks_for(point, made), device)
            points.append(point)
    return points, made


def tasks_for(point: Point, made: Benchmarks) -> Benchmark:
    """The point's benchmark, made once: what an earlier stage chooses may bring one that no point had before."""
    benchmark = point.experiment.benchmark
    if all(known != benchmark for known, _ in made):
        made.append((benchmark, benchmark.make_validation()))
    return next(tasks for known, tasks in made if known == benchmark)


def short(options: Options) -> Options:
    """By the last part of their names."""
    return {option.rpartition(".")[2]: value for option, value in options.items()}


def show(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
