"""A point of the grid: its experiment, its folder, and what its seeds have left there."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dualnet import atomic, metrics
from dualnet.files import because, read_json
from dualnet.runs.experiment import Experiment
from dualnet.runs.record import RESULT_FILE, flat, mapping_in, read_result
from dualnet.search.plan import METRICS, Options, SearchPlan

FAILED_FILE = "failed.json"  # in the run folder of a seed that diverged
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


def folder_name(options: Options) -> str:
    """Readable, and another one for other options.

    >>> folder_name({"learner.lr": 0.1, "learner.memory.policy": "ring"})
    'lr=0.1,policy=ring'
    """
    text = ",".join(f"{name}={value}" for name, value in short(options).items())
    safe = re.sub(r"[^\w.,=+-]", "_", text, flags=re.ASCII)[:NAME_LENGTH]
    return safe if safe == text else f"{safe}-{blake2b(text.encode(), digest_size=4).hexdigest()}"


def short(options: Options) -> Options:
    """By the last part of their names, where these differ."""
    last = {option.rpartition(".")[2]: value for option, value in options.items()}
    return last if len(last) == len(options) else options


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


def outcome_of(point: Point, out: Path, plan: SearchPlan, troubles: Mapping[Path, str]) -> Outcome | None:
    """What the seeds have left, or None while one of them is neither finished nor failed."""
    folders = point.folders(out, plan.seeds)
    results = {seed: result_of(folder) for seed, folder in folders.items()}
    reasons = [failure_of(folder) or troubles.get(folder) for seed, folder in folders.items() if not results[seed]]
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


def result_of(folder: Path) -> dict[str, Any]:
    """Figures of a finished run by their names in a RunRecord; empty if it is not finished."""
    return read_result(folder / RESULT_FILE)


def failure_of(folder: Path) -> str | None:
    """Why a seed diverged; None if it did not."""
    file = folder / FAILED_FILE
    return str(read_own(file).get("reason") or "diverged") if file.exists() else None


def write_failure(folder: Path, reason: str) -> None:
    """Without the path, which changes if the folder is moved, and the advice, which is for a single run."""
    what = reason.removeprefix(f"{folder}: ").partition(";")[0]
    atomic.write(folder / FAILED_FILE, json.dumps({"reason": f"{folder.name}: {what}"}) + "\n")


def is_settled(folder: Path) -> bool:
    return (folder / RESULT_FILE).exists() or (folder / FAILED_FILE).exists()


def read_own(file: Path) -> dict[str, Any]:
    """A file that the search has written."""
    try:
        content = read_json(file)
        sections = {key: mapping_in(content, key) for key in ("experiment", "environment") if key in content}
    except ValueError as error:
        raise ValueError(f"{because(file, error)}; remove it, the search makes it again") from error
    return content | sections


def best(outcomes: Sequence[Outcome], metric: str) -> int | None:
    """The number of the best one, the first of equals; None where all have failed."""
    there = [number for number, outcome in enumerate(outcomes) if outcome.mean is not None]
    return min(there, key=lambda number: rank(outcomes[number], metric), default=None)


def rank(outcome: Outcome, metric: str) -> float:
    """Less is better; those that failed come last."""
    return float("inf") if outcome.mean is None else -METRICS[metric] * outcome.mean
