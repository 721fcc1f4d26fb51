"""A point of the grid: its experiment, its folder, and what its seeds have left there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dualnet import atomic, files, metrics
from dualnet.runs import record
from dualnet.runs.experiment import Experiment
from dualnet.runs.record import flat
from dualnet.runs.run_folder import RunFolder
from dualnet.search.plan import METRICS, Options, SearchPlan

FAILED = "failed.json"  # in the run folder of a seed that diverged
NAME_LENGTH = 100  # of a folder; file systems take 255 bytes


@dataclass(frozen=True)
class Point:
    """One experiment. Points of two stages with the same options are one: they share a folder."""

    written: Options  # as the search file has them: what a later stage goes on from
    options: Options  # of every option that the search varies, as the experiment has them
    experiment: Experiment
    name: str  # of its folder

    def folders(self, out: Path, seeds: Sequence[int]) -> dict[int, Path]:
        return {seed: out / "points" / self.name / f"seed-{seed}" for seed in seeds}


def point_of(plan: SearchPlan, written: Options) -> Point:
    experiment = plan.experiment(written)
    values = flat(experiment.mapping())
    options = {option: values[option] for option in plan.varied if option in values}
    return Point(written, options, experiment, folder_name(options))


def common_options(plan: SearchPlan, point: Point) -> Options:
    """What all points share."""
    values = flat(point.experiment.mapping())
    return {option: value for option, value in values.items() if option not in plan.varied}


def folder_name(options: Options) -> str:
    """Readable, and another one for other options.

    >>> folder_name({"learner.lr": 0.1, "learner.memory.policy": "ring"})
    'lr=0.1,policy=ring'
    """
    last = [option.rpartition(".")[2] for option in options]
    names = last if len(set(last)) == len(last) else list(options)
    text = ",".join(f"{name}={value}" for name, value in zip(names, options.values(), strict=True))
    safe = re.sub(r"[^\w.,=+-]", "_", text, flags=re.ASCII)[:NAME_LENGTH]
    return safe if safe == text else f"{safe}-{blake2b(text.encode(), digest_size=4).hexdigest()}"


@dataclass(frozen=True)
class Outcome:
    """A point's figures: the metric over the seeds, or why there are none."""

    options: Options
    folder: str  # below that of the search
    mean: float | None  # of the metric
    spread: float | None  # standard deviation; None for one seed
    seconds: float  # of all seeds
    seeds: dict[str, dict[str, float | None]]  # all metrics of every finished seed
    failed: str | None
    retried: bool = False  # whether the same command tries again: it failed for a reason outside of its options

    def json(self) -> dict[str, Any]:
        return asdict(self)


def outcome_of(point: Point, out: Path, plan: SearchPlan, troubles: Mapping[Path, str]) -> Outcome | None:
    """What the seeds have left, or None while one of them is neither finished nor failed."""
    folders = point.folders(out, plan.seeds)
    results = {seed: read_result(folder) for seed, folder in folders.items()}
    reasons = [read_failure(folder) or troubles.get(folder) for seed, folder in folders.items() if not results[seed]]
    if None in reasons:
        return None
    done = {seed: result for seed, result in results.items() if result}
    values = [result["metrics"][plan.metric] for result in done.values()]
    if not reasons and None in values:
        reasons = [f"{plan.metric} is not defined on a stream of one task, nor for Offline; choose by ACC"]
    return Outcome(
        options=point.options,
        folder=f"points/{point.name}",
        mean=None if reasons else sum(values) / len(values),
        spread=None if reasons else metrics.spread(values),
        seconds=round(sum(result["seconds"] or 0 for result in done.values()), 2),
        seeds={str(seed): result["metrics"] for seed, result in done.items()},
        failed=reasons[0] if reasons else None,
        retried=any(folder in troubles for folder in folders.values()),
    )


def is_settled(folder: Path) -> bool:
    return RunFolder(folder).finished or (folder / FAILED).exists()


def read_result(folder: Path) -> dict[str, Any]:
    """Figures of a finished run by their names in a RunRecord; empty if it is not finished."""
    return record.read_result(folder / record.RESULT_FILE)


def read_failure(folder: Path) -> str | None:
    reason = read_json(folder / FAILED).get("reason")
    return None if reason is None else str(reason)


def write_failure(folder: Path, reason: str) -> None:
    """Without the path, which changes if the folder is moved, and the advice, which is for a single run."""
    what = reason.removeprefix(f"{folder}: ").partition(";")[0]
    atomic.write(folder / FAILED, json.dumps({"reason": f"{folder.name}: {what}"}) + "\n")


def read_json(file: Path) -> dict[str, Any]:
    """Empty if there is no such file."""
    if not file.exists():
        return {}
    try:
        return files.read_json(file)
    except ValueError as error:
        raise ValueError(f"{error}; remove it, the search makes it again") from error


def best(outcomes: Sequence[Outcome], metric: str) -> int | None:
    """The number of the best one, the first of equals; None where all have failed."""
    there = [number for number, outcome in enumerate(outcomes) if outcome.mean is not None]
    return max(there, key=lambda number: METRICS[metric] * (outcomes[number].mean or 0.0), default=None)
