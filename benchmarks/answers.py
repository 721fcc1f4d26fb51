"""Searches side by side in one engine, chosen by the best answer: the mean of the heads, or a closed-form head.

    python -m benchmarks.answers OUT SEARCH... [--device cuda] [--confirm 3 --seeds 1,2] [--OPTION VALUE...]

The answers of a point come from one training, which they do not affect, so that OUT/SEARCH/answers.json lists all of
them: ACC at the end of the stream, by kind and number of levels. After the last stage the best points are repeated with
other seeds; the first point of the file is then the choice. The same command resumes: nothing finished is run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dualnet import atomic, load
from dualnet.engine import Engine, precision_on
from dualnet.experiments.experiment import Experiment, command_options
from dualnet.experiments.run import RunsDivergedError
from dualnet.experiments.run_folder import RunFolder
from dualnet.experiments.runner import BenchmarkCache, run, stream_of
from dualnet.experiments.stop import StopRequested
from dualnet.learners import Learner
from dualnet.learners.memory_head import MemoryHead
from dualnet.machine import choose_device
from dualnet.metrics import sample_of
from dualnet.nets.closed_form import ClosedForm, Kind
from dualnet.search import SearchPlan, read_plan
from dualnet.search.points import Point, make_point

LEVELS = 4  # of the built-in encoder
KINDS: tuple[Kind, ...] = ("means", "lda", "ridge")
PASS = 500  # images
Test = tuple[Tensor, Tensor, Tensor]


class Answers:
    """The ACC of every answer of a trained learner."""

    def __init__(self, learner: Learner, tests: Sequence[Test]) -> None:
        self.learner, self.engine = learner, Engine([learner], precision_on(learner.class_mask.device))
        (memory,) = learner.memories
        stored = memory.filled.nonzero().flatten()
        self.labels = memory.labels[stored]
        self.features = self.views(memory.images[stored])
        self.tests = [(self.views(images), labels) for images, labels, _ in tests]
        self.heads = self.mean([(self.of_heads(images, tasks), labels) for images, labels, tasks in tests])

    def of_heads(self, images: Tensor, task_ids: Tensor) -> Tensor:
        """The classes that the linear heads predict."""
        parts = zip(images.split(PASS), task_ids.split(PASS), strict=True)
        with self.engine.autocast():
            return torch.cat([self.learner.stateless_forward(*part).argmax(dim=1) for part in parts])

    def mean(self, answers: Sequence[tuple[Tensor, Tensor]]) -> float:
        """ACC of the answers to the tests, beside their labels."""
        right = [(answer == labels).double().mean() for answer, labels in answers]
        return round(100 * torch.stack(right).mean().item(), 2)

    def views(self, images: Tensor) -> list[list[Tensor]]:
        """The features of each level, of the images and of their mirror images."""
        return [self.levels(images), self.levels(images.flip(dims=(3,)))]

    def levels(self, images: Tensor) -> list[Tensor]:
        """The features of each level."""
        with self.engine.autocast():
            rows = [MemoryHead("means", LEVELS).features(self.learner, part) for part in images.split(PASS)]
        means, deviations = torch.cat(rows).chunk(2, dim=1)
        unit = means.shape[1] // (2**LEVELS - 1)  # channels of the first level; every level has twice as many
        widths = [unit * 2**level for level in range(LEVELS)]
        pairs = zip(means.split(widths, dim=1), deviations.split(widths, dim=1), strict=True)
        return [torch.cat(pair, dim=1) for pair in pairs]

    def measure(self) -> dict[str, float]:
        """By kind and number of levels, and whether mirror images are added to the memory and to each test image."""
        measured = {"heads": self.heads}
        for count in range(1, LEVELS + 1):
            last = [torch.cat(levels[-count:], dim=1) for levels in self.features]
            head = ClosedForm(last[0].shape[1], self.learner.spec.num_classes).to(self.labels.device)
            for views, name in enumerate(("", "-flip"), 1):
                head.add(last[views - 1], self.labels)
                for kind in KINDS:
                    head.kind, head.is_solved = kind, False
                    pairs = [(self.answers(head, test[:views], count), labels) for test, labels in self.tests]
                    measured[f"{kind}-{count}{name}"] = self.mean(pairs)
        return measured

    def answers(self, head: ClosedForm, views: Sequence[list[Tensor]], count: int) -> Tensor:
        """The classes with the largest mean of the logits of the views."""
        return sum(head.logits(torch.cat(levels[-count:], dim=1)) for levels in views).argmax(dim=1)  # pyright: ignore


def measure(folder: Path, experiment: Experiment, benchmarks: BenchmarkCache, device: torch.device) -> None:
    """Write the metrics of a finished run with all answers; then its checkpoint goes."""
    stream = stream_of(experiment, benchmarks.get(experiment.ordered_benchmark), device)
    tests = [stream.test_set(task) for task in range(stream.num_tasks)]
    result = json.loads(RunFolder(folder).result_file.read_text())
    answers = Answers(load(folder, device.type).learner, tests).measure()
    content = {**result["metrics"], "seconds": result["seconds"], "cost": result["cost"]}
    content["answers"] = answers
    atomic.write(folder / "answers.json", json.dumps(content) + "\n")
    shutil.rmtree(RunFolder(folder).checkpoints, ignore_errors=True)


class Searches:
    def __init__(self, plans: Sequence[SearchPlan], out: Path, device: torch.device, side_by_side: int) -> None:
        self.plans, self.out, self.device, self.side_by_side = plans, out, device, side_by_side
        self.benchmarks = BenchmarkCache(validation=True)
        self.points: dict[str, dict[str, Point]] = {plan.name: {} for plan in plans}  # by folder, as they are made
        self.chosen: dict[str, dict[str, Any]] = {plan.name: {} for plan in plans}

    def run(self, confirm: int, seeds: Sequence[int]) -> None:
        for number in range(max(len(plan.stages) for plan in self.plans)):
            runs: dict[Path, Experiment] = {}
            for plan in self.plans:
                for options in plan.stages[number] if number < len(plan.stages) else ():
                    point = make_point(plan, self.chosen[plan.name] | options)
                    self.points[plan.name].setdefault(point.folder, point)
                    runs |= self.runs_of(plan, point, plan.seeds)
            self.finish(f"stage {number + 1}", runs)
            for plan in self.plans:
                self.chosen[plan.name] = self.by_first_seeds(plan)[0].written
        again = [(plan, point) for plan in self.plans for point in self.by_first_seeds(plan)[:confirm]]
        self.finish("confirm", {k: v for plan, point in again for k, v in self.runs_of(plan, point, seeds).items()})

    def runs_of(self, plan: SearchPlan, point: Point, seeds: Sequence[int]) -> dict[Path, Experiment]:
        assert point.experiment is not None
        folder = self.out / plan.name / point.folder
        return {folder / f"seed-{seed}": point.experiment.with_seed(seed) for seed in seeds}

    def finish(self, title: str, runs: dict[Path, Experiment]) -> None:
        todo = {folder: experiment for folder, experiment in runs.items() if not (folder / "answers.json").exists()}
        print(f"{title}: {len(todo)} of {len(runs)} runs to do", flush=True)
        folders = list(todo)
        for first in range(0, len(folders), self.side_by_side):
            some = {folder: todo[folder] for folder in folders[first : first + self.side_by_side]}
            try:
                run(some, self.device, None, self.benchmarks)
            except RunsDivergedError as error:
                print(error, flush=True)
            for folder, experiment in some.items():
                if RunFolder(folder).finished:
                    measure(folder, experiment, self.benchmarks, self.device)
            self.write()

    def results(self, plan: SearchPlan, point: Point) -> dict[str, dict[str, Any]]:
        """What is measured of a point, by seed."""
        files = sorted((self.out / plan.name / point.folder).glob("seed-*/answers.json"))
        return {file.parent.name.removeprefix("seed-"): json.loads(file.read_text()) for file in files}

    def best(self, results: Mapping[str, dict[str, Any]]) -> tuple[float, str]:
        """The best answer: its mean over seeds, and its name. -1 if all seeds have diverged."""
        answers = [result["answers"] for result in results.values()]
        if not answers:
            return -1.0, ""
        common = [name for name in answers[0] if all(name in each for each in answers)]
        means = {name: sample_of([each[name] for each in answers]).mean for name in common}
        return max((mean, name) for name, mean in means.items())

    def by_first_seeds(self, plan: SearchPlan) -> list[Point]:
        """The best point first, by the seeds of the search."""

        def rank(point: Point) -> tuple[float, str]:
            results = self.results(plan, point)
            return self.best({seed: results[seed] for seed in map(str, plan.seeds) if seed in results})

        return sorted(self.points[plan.name].values(), key=rank, reverse=True)

    def by_all_seeds(self, plan: SearchPlan) -> list[dict[str, Any]]:
        """What is known of each point: the best of those with most seeds first."""
        rows = []
        for point in self.points[plan.name].values():
            results, folder = self.results(plan, point), self.out / plan.name / point.folder
            diverged = [reason for seed in folder.glob("seed-*") if (reason := RunFolder(seed).diverged)]
            row = {"options": point.options, "best": self.best(results), "seeds": results, "diverged": diverged}
            rows += [row] if results or diverged else []
        return sorted(rows, key=lambda row: (len(row["seeds"]), row["best"]), reverse=True)

    def write(self) -> None:
        for plan in self.plans:
            points = self.by_all_seeds(plan)
            (self.out / plan.name).mkdir(parents=True, exist_ok=True)
            content = {"search": plan.name, "device": self.device.type, "torch": torch.__version__, "points": points}
            atomic.write(self.out / plan.name / "answers.json", json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.answers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("search", nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--side-by-side", type=int, default=16)
    parser.add_argument("--confirm", type=int, default=0, help="how many of the best points are repeated")
    parser.add_argument("--seeds", default="1,2", help="with which seeds")
    given, rest = parser.parse_known_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    plans = [read_plan(search, command_options(rest, ())) for search in given.search]
    try:
        Searches(plans, given.out, choose_device(given.device), given.side_by_side).run(given.confirm, seeds)
    except StopRequested as stopped:
        sys.exit(str(stopped))


if __name__ == "__main__":
    main()
