"""Reading of the log of a run: losses, accuracy during the stream, content of the memory, ends of tasks."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualnet.files import MEGABYTE, READ_ERRORS, describe_error, read_bytes
from dualnet.options import is_whole
from dualnet.text import escape

MAX_LOG_BYTES = 256 * MEGABYTE
MAX_NUMBER = 1e300


@dataclass(frozen=True, slots=True)
class Log:
    losses: dict[int, dict[str, float]]  # by step: means over the steps since the last
    stability: dict[int, list[float]]  # by step: accuracy on each earlier task, percent
    anytime: dict[int, float]  # by step: accuracy on the classes seen so far, percent
    stored: dict[int, list[int]]  # by finished task: numbers of examples in the memory
    stored_by_task: bool  # these are numbers by task, if all lines have them, else by class
    task_ends: list[int]  # the step after which each task was evaluated
    last_step: int | None
    diverged: str | None  # where and why, if it has diverged, and the remedy


def read_log(path: Path) -> Log:
    """The known events of a log; others are ignored."""
    events = [event for event in _events(path) if is_whole(event.get("step"))]
    losses = {step: event["losses"] for step, event in _by_step(events, "losses", "losses", dict).items()}
    stability = {step: _floats(e["accuracy"]) for step, e in _by_step(events, "stability", "accuracy", list).items()}
    anytime = {step: _floats([e["accuracy"]])[0] for step, e in _by_step(events, "anytime", "accuracy", float).items()}
    memory = [event for event in _by_step(events, "memory", "classes", list).values() if is_whole(event.get("task"))]
    by_task = all(isinstance(event.get("tasks"), list) for event in memory)
    counts = {event["task"]: event["tasks" if by_task else "classes"] for event in memory}
    ends = {event["task"]: step for step, event in _by_step(events, "evaluation", "task", int).items()}
    return Log(
        losses={step: dict(zip(means, _floats(means.values()), strict=True)) for step, means in losses.items()},
        stability={step: values for step, values in stability.items() if values and not np.isnan(values).any()},
        anytime={step: value for step, value in anytime.items() if not math.isnan(value)},
        stored={task: [count if is_whole(count) else 0 for count in stored] for task, stored in counts.items()},
        stored_by_task=by_task,
        task_ends=[ends[task] for task in sorted(ends)],
        last_step=max((event["step"] for event in events), default=None),
        diverged=next((_divergence(event) for event in events[-1:] if event.get("event") == "diverged"), None),
    )


def _divergence(event: Mapping[str, Any]) -> str:
    remedy = "use a lower learner.lr, or remove the folder of the run to try it again"
    return f"{event.get('reason')} at step {event['step']}; {remedy}"


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log. Damaged ones are skipped: the last one is incomplete if the process was killed."""
    if not path.exists():
        return
    try:
        lines = read_bytes(path, MAX_LOG_BYTES).decode("utf-8", errors="replace").splitlines()
    except (OSError, ValueError) as error:
        raise ValueError(f"{escape(path)}: cannot be read ({describe_error(error)})") from error
    for line in lines:
        try:
            event = json.loads(line)
        except READ_ERRORS:
            continue
        if isinstance(event, dict):
            yield event


def _by_step(events: Sequence[Mapping[str, Any]], kind: str, key: str, content: type) -> dict[int, Mapping[str, Any]]:
    """The events of a kind whose content has the right type, by their step."""
    return {e["step"]: e for e in events if e.get("event") == kind and isinstance(e.get(key), content)}


def _floats(values: Any) -> list[float]:
    """The values as numbers; NaN for what is not a finite number."""
    return [float(v) if isinstance(v, int | float) and abs(v) < MAX_NUMBER else math.nan for v in values]
