"""Runs a search stage by stage: each stage starts from the best point of the stage before it."""

import json
from contextlib import nullcontext
from itertools import chain, zip_longest
from pathlib import Path
from typing import Self

import torch
import yaml

from dualnet import atomic
from dualnet.experiments.run_folder import RunFolder, environment
from dualnet.experiments.runner import BenchmarkCache, check_learner
from dualnet.files import read_json
from dualnet.jobs.display import RowsDisplay
from dualnet.jobs.placement import Placement
from dualnet.jobs.rows import RowRunner
from dualnet.options import flatten
from dualnet.search.points import Point, make_point
from dualnet.search.search_file import SearchPlan, options_text


class NothingChosenError(RuntimeError):
    """Every point of a stage failed."""


class Search:
    """A plan and its folder, which holds search.json, chosen.yaml, and the run folders below points/."""

    def __init__(
        self,
        plan: SearchPlan,
        out: Path,
        device: torch.device,
        placement: Placement | None = None,
        display: RowsDisplay | None = None,
    ) -> None:
        self.plan, self.out, self.device = plan, out, device
        self.placement = placement = placement or Placement()
        self.file = out / "search.json"
        self.log_file = out / "processes.log"  # output of the processes, including tracebacks
        self.pool = placement.executor(device.type, out, self.log_file)
        benchmarks = BenchmarkCache(validation=True)
        self.rows = RowRunner(
            self.pool, device, placement.side_by_side, display, benchmarks, plan.metric, placement.shard
        )
        self.stages: list[list[Point]] = []
        self.chosen: list[Point] = []  # by stage

    def run(self) -> Self:
        """Run the search, or resume it; finished runs are kept. Raises StopRequested, NothingChosenError."""
        for experiment in chain.from_iterable(self.plan.experiments()):  # of all stages, before the first one runs
            check_learner(experiment, self.rows.benchmarks.get(experiment.ordered_benchmark))
        atomic.make_folder(self.out, "choose another --out")  # of the log, also where a shard takes no lock
        lock = nullcontext() if self.placement.shard else RunFolder(self.out).locked()
        with lock, self.pool:
            self.check_device()
            for number in range(len(self.plan.stages)):
                if not self.run_stage(number):
                    return self  # other shards have not finished the stage
            self.write_chosen()
        return self

    @property
    def complete(self) -> bool:
        return len(self.chosen) == len(self.plan.stages)

    def check_device(self) -> None:
        """Raises ValueError if the search was started on another kind of device: its points are compared."""
        content = read_json(self.file) if self.file.exists() else {}
        device = content.get("environment", {}).get("device", self.device.type)
        if device != self.device.type:
            raise ValueError(f"--device: this search was started on {device}; continue there, or choose another --out")

    def run_stage(self, number: int) -> bool:
        """Run the points of a stage, or this shard's part of them. Returns whether all are done."""
        points = self.points(number)
        self.stages.append(points)
        rows = [(point, point.row(self.out, self.plan.seeds)) for point in points if point.experiment]

        def update() -> None:
            for point, row in rows:
                if not point.is_done:
                    point.update(row, self.rows, self.plan.metric)
            self.write()

        self.rows.run(f"stage {number + 1}/{len(self.plan.stages)}", [row for _, row in rows], update)
        if not all(point.is_done for point in points):
            return False
        best = min(points, key=lambda point: point.rank(self.plan.metric))
        if best.mean is None:
            log = f"; see {self.log_file}" if self.rows.failures else ""
            first = f"{options_text(best.options)}: {best.failed}"
            raise NothingChosenError(f"{self.out}: every point failed; {first}{log}")
        self.chosen.append(best)
        self.write()
        return True

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

    def write(self) -> None:
        """Write search.json. A shard leaves it to a call that sees all runs."""
        if self.placement.shard:
            return
        chosen = [point.options for point in self.chosen]
        if not self.complete:
            (self.out / "chosen.yaml").unlink(missing_ok=True)
        stages = zip_longest(self.stages, chosen)
        values = flatten(self.plan.experiment(self.plan.stages[0][0]).mapping())
        content = {
            "name": self.plan.name,
            "metric": self.plan.metric,
            "seeds": self.plan.seeds,
            "complete": self.complete,
            "chosen": chosen[-1] if self.complete else None,
            "stages": [{"points": [point.json() for point in points], "chosen": best} for points, best in stages],
            "experiment": {option: value for option, value in values.items() if option not in self.plan.varied},
            "environment": environment(self.device) | {"threads": self.pool.threads},
        }
        atomic.write(self.file, json.dumps(content, indent=1) + "\n")

    def write_chosen(self) -> None:
        """Write the chosen experiment in full, for `dualnet run`. The file exists only while the search is complete."""
        if self.placement.shard:
            return
        chosen = self.chosen[-1]
        assert chosen.experiment is not None
        figure = f"{self.plan.metric} {chosen.mean:.2f}" + (f" ± {chosen.spread:.2f}" if chosen.spread else "")
        seeds = ", ".join(map(str, self.plan.seeds))
        head = f"# Chosen by `dualnet search {self.plan.name}` on validation tasks: {figure}, seeds {seeds}."
        content = {**chosen.experiment.mapping(), "name": f"{self.plan.name}-chosen"}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        atomic.write(self.out / "chosen.yaml", f"{head}\n{text}")
