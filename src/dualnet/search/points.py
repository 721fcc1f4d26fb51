"""A point of the grid: its experiment, its folder, and the results of its seeds."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dualnet.experiments.experiment import Experiment
from dualnet.jobs.rows import Row, RowRunner
from dualnet.metrics import sample_of
from dualnet.options import flatten, shorten
from dualnet.search.search_file import METRICS, SearchPlan, Values, options_text

MAX_NAME_LENGTH = 100  # characters of a folder name; file systems allow 255 bytes


@dataclass
class Point:
    """One experiment with its metric over all seeds, or the reason why it failed.

    Points of different stages may share a folder.
    """

    written: Values  # values as written in the search file; the next stage starts from them
    experiment: Experiment | None  # None if the values are invalid together with those chosen in earlier stages
    options: Values  # every option that the search varies, as the experiment has it
    folder: str = ""  # relative to the folder of the search
    mean: float | None = None  # of the metric over seeds
    spread: float | None = None  # standard deviation; None for a single seed
    seconds: float = 0.0  # total over seeds
    seeds: dict[str, dict[str, float | None]] = field(default_factory=dict)  # all metrics of each finished seed
    failed: str | None = None  # the reason

    @property
    def is_done(self) -> bool:
        return self.mean is not None or self.failed is not None

    def row(self, out: Path, seeds: Sequence[int]) -> Row:
        assert self.experiment is not None
        return Row(options_text(shorten_names(self.options)), self.experiment, seeds, out / self.folder)

    def update(self, row: Row, rows: RowRunner, metric: str) -> None:
        """Compute the metric once every seed has finished or failed; until then, change nothing."""
        outcomes = {run.seed: rows.outcome(folder) for folder, run in row.runs.items()}
        if None in outcomes.values():
            return
        results = {seed: outcome for seed, outcome in outcomes.items() if isinstance(outcome, dict)}
        reasons = [outcome for outcome in outcomes.values() if isinstance(outcome, str)]
        values = [result["metrics"].get(metric) for result in results.values()]
        if not reasons and None in values:
            reasons = [f"{metric} is undefined for a stream of one task and for Offline; use the metric ACC"]
        self.seconds = round(sum(result["seconds"] or 0 for result in results.values()), 2)
        self.seeds = {str(seed): result["metrics"] for seed, result in results.items()}
        if reasons:
            self.failed = reasons[0]
        else:
            sample = sample_of(values)
            self.mean, self.spread = sample.mean, sample.std

    def rank(self, metric: str) -> float:
        """Sort key: the best point first, failed points last."""
        return math.inf if self.mean is None else -METRICS[metric] * self.mean

    def json(self) -> dict[str, Any]:
        """The point's entry in search.json: only its options until it is done."""
        if not self.is_done:
            return {"options": self.options}
        return {name: value for name, value in vars(self).items() if name not in ("written", "experiment")}


def make_point(plan: SearchPlan, written: Values) -> Point:
    experiment = plan.experiment(written)
    values = flatten(experiment.mapping())
    options = {option: values[option] for option in plan.varied if option in values}
    return Point(written, experiment, options, f"points/{folder_name(options)}")


def folder_name(options: Values) -> str:
    """A readable name, unique to the options.

    >>> folder_name({"learner.lr": 0.1, "learner.memory.policy": "ring"})
    'lr=0.1,policy=ring'
    """
    text = ",".join(f"{name}={value}" for name, value in shorten_names(options).items())
    safe = re.sub(r"[^\w.,=+-]", "_", text, flags=re.ASCII)[:MAX_NAME_LENGTH]
    return safe if safe == text else f"{safe}-{blake2b(text.encode(), digest_size=4).hexdigest()}"


def shorten_names(options: Values) -> Values:
    return dict(zip(shorten(list(options)), options.values(), strict=True))
