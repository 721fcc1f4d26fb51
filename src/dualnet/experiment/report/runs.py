"""Run folders as the report sees them: what was run, what came out, and which runs are not finished."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dualnet.experiment.run_folder import FREE_TO_CHANGE, WRITTEN_BESIDE
from dualnet.metrics import Matrix, accuracy_matrix

# A resumed or repeated run may differ in these; they do not make it another experiment.
# Stream and manifest follow from the options.
NOT_OPTIONS = ("seed", *WRITTEN_BESIDE, *FREE_TO_CHANGE)


@dataclass(frozen=True, slots=True)
class LossPoint:
    """Mean losses over the steps since the point before."""

    step: int
    losses: dict[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """One seed of one experiment. accuracy is None until it is finished."""

    folder: Path
    name: str
    seed: str
    options: dict[str, str]  # dotted key -> text, without NOT_OPTIONS
    environment: dict[str, str]
    last_step: int | None
    accuracy: Matrix | None = None  # percent, [tasks, tasks]
    seconds: float | None = None
    peak_memory: int | None = None  # bytes
    losses: list[LossPoint] = field(default_factory=list)
    task_ends: list[int] = field(default_factory=list)  # the step after which each task was evaluated


def find_runs(folders: Sequence[Path]) -> list[Run]:
    """All runs at or below the folders, at any depth, each once, in the order of the folders and then by name."""
    found = {folder.resolve(): folder for root in folders for folder in _run_folders(Path(root))}
    if not found:
        below = ", ".join(str(folder) for folder in folders) or "no folder"
        raise ValueError(f"no runs found in {below}; run an experiment first or give the folder that holds its runs")
    return [read_run(folder) for folder in found.values()]


def _run_folders(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder; give a folder that holds runs")
    marks = [*root.rglob("experiment.yaml"), *root.rglob("result.json")]
    yield from sorted({mark.parent for mark in marks}, key=_natural)


def _natural(folder: Path) -> list[tuple[int, str]]:
    """Sort key that puts seed-2 before seed-10."""
    words = "".join(c if c.isdigit() else f" {c} " for c in str(folder)).split()
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


def read_run(folder: Path) -> Run:
    """The run in a folder, finished or not."""
    experiment = _read_experiment(folder / "experiment.yaml")
    events = list(_read_log(folder / "log.jsonl"))
    options = {key: value for key, value in experiment.items() if key not in NOT_OPTIONS}
    return Run(
        folder=folder,
        name=str(experiment["name"]),
        seed=str(experiment["seed"]),
        options=flatten(options),
        environment=flatten(experiment.get("environment") or {}),
        losses=_loss_points(events),
        task_ends=_task_ends(events),
        **{"last_step": _last_step(events), **_read_result(folder / "result.json")},
    )


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, str]:
    """A nested mapping as dotted keys and texts.

    >>> flatten({"learner": {"name": "er", "betas": [1, 2], "head": None}})
    {'learner.name': 'er', 'learner.betas': '[1, 2]', 'learner.head': 'null'}
    """
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def _read_experiment(path: Path) -> Mapping[str, Any]:
    try:
        experiment = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read ({_one_line(error)}); remove the folder or run it again") from error
    if not isinstance(experiment, Mapping) or not {"name", "seed"} <= set(experiment):
        raise ValueError(f"{path} has no name and seed; remove the folder or run it again")
    if not isinstance(experiment.get("environment") or {}, Mapping):
        raise ValueError(f"{path}: environment is not a mapping; remove the folder or run it again")
    return experiment


def _read_result(path: Path) -> dict[str, Any]:
    """The fields of a finished run; none while there is no result."""
    if not path.exists():
        return {}
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        return {
            "accuracy": accuracy_matrix(result["accuracy"]),
            "seconds": _number(result.get("seconds")),
            "peak_memory": _number(result.get("peak_memory_bytes")),
            **({"last_step": result["steps"]} if _is_whole(result.get("steps")) else {}),
        }
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is not a result ({_one_line(error)}); remove it and run again") from error


def _read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a log. A line that was torn when the run was stopped is left out."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(event, dict):
            yield event


def _last_step(events: Sequence[Mapping[str, Any]]) -> int | None:
    return max((event["step"] for event in events if _is_whole(event.get("step"))), default=None)


def _loss_points(events: Sequence[Mapping[str, Any]]) -> list[LossPoint]:
    points: list[LossPoint] = []
    for event in events:
        if event.get("event") == "losses" and _is_whole(event.get("step")) and isinstance(event.get("losses"), dict):
            # A resumed run repeats the steps since its checkpoint: the later line is the true one.
            while points and points[-1].step >= event["step"]:
                points.pop()
            points.append(LossPoint(event["step"], {str(k): _loss(v) for k, v in event["losses"].items()}))
    return points


def _task_ends(events: Sequence[Mapping[str, Any]]) -> list[int]:
    ends = {
        event["task"]: event["step"]
        for event in events
        if event.get("event") == "evaluation" and _is_whole(event.get("step")) and _is_whole(event.get("task"))
    }
    return [ends[task] for task in sorted(ends)]


def _number(value: Any) -> Any:
    """The value, checked: a number or nothing."""
    if value is not None and not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return value


def _loss(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _is_whole(value: Any) -> bool:
    return isinstance(value, int)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
