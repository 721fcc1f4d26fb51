"""A point of the grid: its experiment, its folder, and what its seeds have left there."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dualnet import atomic, metrics
from dualnet.files import describe_file_error, read_json
from dualnet.options import flat
from dualnet.runs.experiment import Experiment
from dualnet.runs.record import RESULT_FILE, mapping_in, read_result
from dualnet.search.plan import METRICS, SearchPlan, Values

FAILED_FILE = "failed.json"  # in the run folder of a seed that diverged
NAME_LENGTH = 100  # of a folder; file systems take 255 bytes


@dataclass
class Point:
    """One experiment, and the metric over its seeds, or why there is none. Points of two stages may share a folder."""

    written: Values  # as the search file has them: what a later stage goes on from
    experiment: Experiment | None  # None: refused, its values do not go with what was chosen before
    options: Values  # of every option that the search varies, as the experiment has them
    folder: str = ""  # below that of the search
    mean: float | None = None  # of the metric
    spread: float | None = None  # standard deviation; None for one seed
    seconds: float = 0.0  # of all seeds
    seeds: dict[str, dict[str, float | None]] = field(default_factory=dict)  # all metrics of every finished seed
    failed: str | None = None
    retried: bool = False  # whether the same command tries again: it failed for a reason outside of its options

    @property
    def settled(self) -> bool:
        return self.mean is not None or self.failed is not None

    def folders(self, out: Path, seeds: Sequence[int]) -> dict[int, Path]:
        return {seed: out / self.folder / f"seed-{seed}" for seed in seeds}

    def update(self, out: Path, plan: SearchPlan, troubles: Mapping[Path, str]) -> None:
        """Reads what the seeds have left, once each of them is finished or has failed."""
        folders = self.folders(out, plan.seeds)
        left = {seed: left_in(folder) or troubles.get(folder) for seed, folder in folders.items()}
        if None in left.values():
            return
        done = {seed: result for seed, result in left.items() if isinstance(result, dict)}
        reasons = [reason for reason in left.values() if isinstance(reason, str)]
        values = [result["metrics"][plan.metric] for result in done.values()]
        if not reasons and None in values:
            reasons = [f"{plan.metric} is not defined on a stream of one task, nor for Offline; choose by ACC"]
        self.seconds = round(sum(result["seconds"] or 0 for result in done.values()), 2)
        self.seeds = {str(seed): result["metrics"] for seed, result in done.items()}
        self.retried = any(folder in troubles for folder in folders.values())
        if reasons:
            self.failed = reasons[0]
        else:
            self.mean, self.spread = sum(values) / len(values), metrics.spread(values)

    def rank(self, metric: str) -> float:
        """Less is better; those that failed come last."""
        return math.inf if self.mean is None else -METRICS[metric] * self.mean

    def json(self) -> dict[str, Any]:
        """What search.json has of it: the options alone until it is settled."""
        if not self.settled:
            return {"options": self.options}
        return {name: value for name, value in vars(self).items() if name not in ("written", "experiment")}


def point_of(plan: SearchPlan, written: Values) -> Point:
    experiment = plan.experiment(written)
    values = flat(experiment.mapping())
    options = {option: values[option] for option in plan.varied if option in values}
    return Point(written, experiment, options, f"points/{folder_name(options)}")


def folder_name(options: Values) -> str:
    """Readable, and another one for other options.

    >>> folder_name({"learner.lr": 0.1, "learner.memory.policy": "ring"})
    'lr=0.1,policy=ring'
    """
    text = ",".join(f"{name}={value}" for name, value in short(options).items())
    safe = re.sub(r"[^\w.,=+-]", "_", text, flags=re.ASCII)[:NAME_LENGTH]
    return safe if safe == text else f"{safe}-{blake2b(text.encode(), digest_size=4).hexdigest()}"


def short(options: Values) -> Values:
    """By the last part of their names, where these differ."""
    last = {option.rpartition(".")[2]: value for option, value in options.items()}
    return last if len(last) == len(options) else options


def left_in(folder: Path) -> dict[str, Any] | str | None:
    """The result of a seed, or why it diverged; None while it is not settled."""
    file = folder / FAILED_FILE
    failed = str(read_own(file).get("reason") or "diverged") if file.exists() else None
    return read_result(folder / RESULT_FILE) or failed


def write_failure(folder: Path, reason: str) -> None:
    """Without the path, which changes if the folder is moved, and the advice, which is for a single run."""
    what = reason.removeprefix(f"{folder}: ").partition(";")[0]
    atomic.write(folder / FAILED_FILE, json.dumps({"reason": f"{folder.name}: {what}"}) + "\n")


def read_own(file: Path) -> dict[str, Any]:
    """A file that the search has written."""
    try:
        content = read_json(file)
        sections = {key: mapping_in(content, key) for key in ("experiment", "environment") if key in content}
    except ValueError as error:
        raise ValueError(f"{describe_file_error(file, error)}; remove it, the search makes it again") from error
    return content | sections
