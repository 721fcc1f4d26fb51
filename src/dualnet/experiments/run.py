"""One seed of an experiment: its learner, its step and its measurements, and how they are saved and resumed."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dualnet import atomic, metrics
from dualnet.cost import Cost
from dualnet.experiments import checkpoint, saved_learner
from dualnet.experiments.experiment import Experiment
from dualnet.experiments.final_predictions import FinalPredictions
from dualnet.experiments.run_folder import RunFolder
from dualnet.files import READ_ERRORS, describe_error
from dualnet.learners import Learner, make_learner
from dualnet.learners.make_encoder import load_initial_weights
from dualnet.machine import peak_memory
from dualnet.stream.stream import Stream


class DivergedError(RuntimeError):
    """The losses or weights of a learner are not finite."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the model has diverged: {reason}; load an earlier save, or use a lower learner.lr")
        self.reason = reason


class RunsDivergedError(RuntimeError):
    """Some runs have diverged. A line for each of their folders."""

    def __init__(self, reasons: Mapping[Path, str]) -> None:
        self.lines = [f"{folder}: {reason}" for folder, reason in reasons.items()]
        super().__init__("; ".join(self.lines))


class Run:
    """One seed of an experiment. Creating it resumes what its folder holds."""

    def __init__(self, experiment: Experiment, folder: RunFolder, stream: Stream) -> None:
        self.experiment, self.folder, self.stream = experiment, folder, stream
        self.learner = make_learner(
            experiment.learner_name, stream.spec, experiment.learner, experiment.seed, str(stream.device), fresh=False
        )
        self.step = 0
        self.seconds = 0.0
        self.cost = Cost()
        self.accuracy = torch.full((stream.num_tasks, stream.num_tasks), math.nan, dtype=torch.float64)
        self.stability = torch.empty(0, stream.num_tasks, dtype=torch.float64)  # a row per evaluation of earlier tasks
        self.anytime = torch.empty(0, dtype=torch.float64)  # an accuracy per evaluation of the classes seen so far
        self.pending: list[dict[str, Tensor]] = []  # losses of steps that are not logged yet
        self.saved: int | None = None  # step of the last checkpoint, which may still be being written
        self.classes: FinalPredictions | None = None  # of the last evaluation
        self.resume()

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one; the log is truncated to it."""
        started = self.folder.started
        newest = checkpoint.newest(self.folder.checkpoints, self.folder.identity) if started else None
        if newest is None:
            load_initial_weights(self.learner)
            self.folder.log_file.write_bytes(b"")
            return
        step, state, _ = newest
        try:
            self.load(state)
        except READ_ERRORS as error:
            raise ValueError(f"{self.folder.path}: cannot resume from step {step}: {describe_error(error)}") from error

    def load(self, state: Mapping[str, Any]) -> None:
        if state["device"] != self.stream.device.type:
            raise ValueError(f"it was started on {state['device']}; resume it there, or choose another --out")
        saved_learner.load_state(self.learner, state)
        self.step = self.saved = state["step"]
        self.seconds, self.accuracy = float(state["seconds"]), state["accuracy"]
        self.cost, self.stability = Cost(**state["cost"]), state["stability"]
        self.anytime = state["anytime"]
        self.pending = [
            {name: loss.to(self.stream.device) for name, loss in losses.items()} for losses in state["pending"]
        ]
        with self.folder.log_file.open("ab") as log:  # created again if it was lost
            log.truncate(min(log.tell(), state["log_bytes"]))

    def snapshot(self) -> checkpoint.Snapshot:
        """The content of a checkpoint of this step, which can be written while the run continues."""
        finite_means(self.pending)
        check_weights(self.learner)
        atomic.flush(self.folder.log_file)
        state = {
            **saved_learner.describe(self.learner, self.folder.record.stream["class_names"]),
            **saved_learner.state_of(self.learner),
            **self.folder.identity,
            "step": self.step,
            "accuracy": self.accuracy,
            "stability": self.stability,
            "anytime": self.anytime,
            "pending": self.pending,
            "seconds": self.seconds,
            "cost": dataclasses.asdict(self.cost),
            "log_bytes": self.folder.log_file.stat().st_size,
        }
        self.saved = self.step
        return checkpoint.snapshot(state)

    def record_evaluation(self, task: int, accuracy: list[float]) -> None:
        """Store and log the accuracy, in percent, on each task so far."""
        self.accuracy[task, : task + 1] = torch.tensor(accuracy, dtype=torch.float64)
        self.log("evaluation", accuracy=[round(value, 4) for value in accuracy])

    def record_stability(self, accuracy: list[float]) -> None:
        """Store and log the accuracy, in percent, on each earlier task."""
        unknown = [math.nan] * (self.stream.num_tasks - len(accuracy))
        row = torch.tensor([[*accuracy, *unknown]], dtype=torch.float64)
        self.stability = torch.cat([self.stability, row])
        self.log("stability", accuracy=[round(value, 4) for value in accuracy])

    @cached_property
    def first_labels(self) -> Tensor:
        return self.stream.first_labels(self.experiment.seed)

    @property
    def classes_seen(self) -> Tensor:
        """The classes of which a label has come: bool [classes]."""
        return self.first_labels <= self.step

    def record_anytime(self, accuracy: float) -> None:
        """Store and log the accuracy, in percent, on the classes seen so far."""
        self.anytime = torch.cat([self.anytime, self.anytime.new_tensor([accuracy])])
        self.log("anytime", accuracy=round(accuracy, 4), classes=int(self.classes_seen.sum()))

    def log_memory(self) -> None:
        """Log how many examples of each task and class the memories of the learner hold."""
        if memories := self.learner.memories:
            stored = torch.stack([memory.composition() for memory in memories]).sum(dim=0)
            slots = sum(memory.num_slots for memory in memories)
            self.log("memory", slots=slots, tasks=self.stream.count_by_task(stored), classes=stored.sum(dim=0).tolist())

    def flush_losses(self) -> dict[str, float]:
        """Log the means of the losses since the last call, and return them."""
        if not self.pending:
            return {}
        values = finite_means(self.pending)
        self.pending.clear()
        self.log("losses", losses=values)
        return values

    def log(self, event: str, **facts: Any) -> None:
        period, _ = self.stream.position(self.step - 1)
        task = self.stream.periods[period].task
        line = {"event": event, "task": task, "step": self.step, "seconds": round(self.seconds, 3), **facts}
        with atomic.naming(self.folder.log_file), self.folder.log_file.open("a") as log:
            log.write(json.dumps(line) + "\n")

    def write_result(self, side_by_side: int) -> None:
        """Write the results. result.json is written last: a run that has it is finished."""
        assert self.classes is not None
        atomic.write(self.folder.classes_file, self.classes.text())
        matrix = self.accuracy.tolist()
        values = metrics.summary(matrix)
        if len(self.stability):
            values |= metrics.stability_summary(matrix, self.stability.numpy())
        if len(self.anytime):
            values["A_AUC"] = float(self.anytime.mean())  # Koh et al., 2022
        result = {
            "accuracy": [[None if math.isnan(value) else round(value, 4) for value in row] for row in matrix],
            "metrics": {name: None if math.isnan(value) else value for name, value in values.items()},
            "steps": self.step,
            "cost": dataclasses.asdict(self.cost),
            "seconds": round(self.seconds, 2),
            "seeds_side_by_side": side_by_side,
            "peak_memory_bytes": peak_memory(self.stream.device),
        }
        atomic.write(self.folder.result_file, json.dumps(result, indent=1) + "\n")


def finite_means(steps: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """The mean of each loss over the steps that have it. Nothing else copies losses to the host.

    Raises DivergedError if one is not finite.
    """
    names = sorted({name for losses in steps for name in losses})
    averages = [torch.stack([losses[name] for losses in steps if name in losses]).mean() for name in names]
    means = dict(zip(names, torch.stack(averages).tolist(), strict=True)) if names else {}
    for name, value in means.items():
        if not math.isfinite(value):
            raise DivergedError(f"loss '{name}' is not finite")
    return means


def check_weights(learner: Learner) -> None:
    """Raises DivergedError if a weight is not finite: the losses come from before the last update."""
    if not all(weight.isfinite().all() for weight in learner.parameters()):
        raise DivergedError("the weights are not finite")
