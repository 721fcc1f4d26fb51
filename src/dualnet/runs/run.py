"""One seed of an experiment: its learner, its place in the stream, what it measured; saved, and taken up again."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dualnet import atomic, metrics
from dualnet.cost import Cost
from dualnet.engine import peak_memory
from dualnet.files import DAMAGES, reason
from dualnet.learners import Learner, make_learner
from dualnet.learners.encoders import load_initial_weights
from dualnet.runs import checkpoint
from dualnet.runs.class_results import ClassResults
from dualnet.runs.experiment import Experiment
from dualnet.runs.run_folder import RunFolder
from dualnet.stream.stream import Stream


class DivergedError(RuntimeError):
    """A learner whose losses or weights are not finite; `what` says which."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the model has diverged: {what} not finite; load an earlier save, or take a lower learner.lr")
        self.what = what


class NotFiniteError(RuntimeError):
    """Seeds that have diverged, each with what is not finite and what is left, in a line."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = dict(reasons)


class Run:
    """One seed: its learner, its place in the stream, what it measured so far."""

    def __init__(self, experiment: Experiment, folder: RunFolder, stream: Stream) -> None:
        self.experiment, self.folder, self.stream = experiment, folder, stream
        self.learner = make_learner(
            experiment.learner_name, stream.spec, experiment.learner, experiment.seed, str(stream.device), fresh=False
        )
        self.step = 0
        self.seconds = 0.0
        self.cost = Cost()
        self.accuracy = torch.full((stream.num_tasks, stream.num_tasks), math.nan, dtype=torch.float64)
        self.stability = torch.empty(0, stream.num_tasks, dtype=torch.float64)  # a row for each look at earlier tasks
        self.pending: list[dict[str, Tensor]] = []
        self.saved: int | None = None  # the step of the last checkpoint, which may still be on its way to the disk
        self.resume()

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one; the log is cut back to it."""
        found = checkpoint.newest(self.folder.checkpoints, self.folder.identity)
        if found is None:
            self.folder.log_file.write_bytes(b"")
            load_initial_weights(self.learner)
            return
        self.step, state = found
        try:
            self.load(state)
        except DAMAGES as error:
            raise ValueError(f"{self.folder.path}: cannot resume from step {self.step}: {reason(error)}") from error

    def load(self, state: Mapping[str, Any]) -> None:
        if state["device"] != self.stream.device.type:
            raise ValueError(f"it was begun on {state['device']}; resume it there, or choose another --out")
        load_state(self.learner, state)
        self.seconds, self.accuracy, self.saved = float(state["seconds"]), state["accuracy"], self.step
        self.cost, self.stability = Cost(**state["cost"]), state["stability"]
        self.pending = [
            {name: loss.to(self.stream.device) for name, loss in losses.items()} for losses in state["pending"]
        ]
        with self.folder.log_file.open("ab") as log:  # made anew if it was lost
            log.truncate(min(log.tell(), state["log_bytes"]))

    def take_state(self) -> checkpoint.Snapshot:
        """A copy of all that a checkpoint of this step holds, to be written while the run continues."""
        finite_means(self.pending)
        check_weights(self.learner)
        atomic.flush(self.folder.log_file)
        state = {
            **learner_state(self.learner),
            "accuracy": self.accuracy,
            "stability": self.stability,
            "pending": self.pending,
            "seconds": self.seconds,
            "cost": dataclasses.asdict(self.cost),
            "device": self.stream.device.type,
            "log_bytes": self.folder.log_file.stat().st_size,
        }
        self.saved = self.step
        return checkpoint.snapshot(state)

    def evaluated(self, task: int, accuracy: list[float]) -> None:
        """Keep and log the accuracy, in percent, on each task so far."""
        self.accuracy[task, : task + 1] = torch.tensor(accuracy, dtype=torch.float64)
        self.log("evaluation", accuracy=[round(value, 4) for value in accuracy])

    def looked_back(self, accuracy: list[float]) -> None:
        """Keep and log the accuracy, in percent, on each task before this one."""
        unknown = [math.nan] * (self.stream.num_tasks - len(accuracy))
        row = torch.tensor([[*accuracy, *unknown]], dtype=torch.float64)
        self.stability = torch.cat([self.stability, row])
        self.log("stability", accuracy=[round(value, 4) for value in accuracy])

    def log_memory(self) -> None:
        """How many examples of each task and class the learner holds, in all of its memories together."""
        if memories := self.learner.memories:
            stored = torch.stack([memory.composition() for memory in memories]).sum(dim=0)
            slots = sum(memory.num_slots for memory in memories)
            self.log("memory", slots=slots, tasks=self.stream.by_task(stored), classes=stored.sum(dim=0).tolist())

    def flush_losses(self) -> dict[str, float]:
        """Log the mean of the losses since the last time."""
        if not self.pending:
            return {}
        values = finite_means(self.pending)
        self.pending.clear()
        self.log("losses", losses=values)
        return values

    def diverged(self, what: str) -> str:
        """Logs it. Returns a line for the user: what is not finite, and what is left."""
        self.log("diverged", reason=f"{what} not finite", checkpoint=self.saved)
        last = "there is no checkpoint yet" if self.saved is None else f"the last good checkpoint is step {self.saved}"
        remedy = f"try a lower rate, or leave seed {self.experiment.seed} out"
        return f"{self.folder.path}: {what} not finite at step {self.step}; {last}; {remedy}"

    def log(self, event: str, **facts: Any) -> None:
        period, _ = self.stream.position(self.step - 1)
        task = self.stream.periods[period].task
        line = {"event": event, "task": task, "step": self.step, "seconds": round(self.seconds, 3), **facts}
        with atomic.naming(self.folder.log_file), self.folder.log_file.open("a") as log:
            log.write(json.dumps(line) + "\n")

    def write_result(self, side_by_side: int, classes: ClassResults) -> None:
        """The result comes last: with it the run is finished."""
        atomic.write(self.folder.classes_file, classes.text())
        matrix = self.accuracy.tolist()
        found = metrics.summary(matrix)
        if len(self.stability):
            found |= metrics.stability_summary(matrix, self.stability.numpy())
        result = {
            "accuracy": [[None if math.isnan(value) else round(value, 4) for value in row] for row in matrix],
            "metrics": {name: None if math.isnan(value) else value for name, value in found.items()},
            "steps": self.step,
            "cost": dataclasses.asdict(self.cost),
            "seconds": round(self.seconds, 2),
            "seeds_side_by_side": side_by_side,
            "peak_memory_bytes": peak_memory(self.stream.device),
        }
        atomic.write(self.folder.result_file, json.dumps(result, indent=1) + "\n")


def finite_means(steps: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """The mean of each loss over the steps that have it. The one place where a step's numbers reach the host."""
    names = sorted({name for losses in steps for name in losses})
    found = [torch.stack([losses[name] for losses in steps if name in losses]).mean() for name in names]
    means = dict(zip(names, torch.stack(found).tolist(), strict=True)) if names else {}
    for name, value in means.items():
        if not math.isfinite(value):
            raise DivergedError(f"loss '{name}' is")
    return means


def check_weights(learner: Learner) -> None:
    """Losses may be finite when the step that followed them has made the weights not."""
    if not all(weight.isfinite().all() for weight in learner.parameters()):
        raise DivergedError("the weights are")


def learner_state(learner: Learner) -> dict[str, Any]:
    """All that a learner remembers: weights, memory and generator, and its optimizers."""
    optimizers = {name: optimizer.state_dict() for name, optimizer in learner.optimizers().items()}
    return {"learner": learner.state_dict(), "optimizers": optimizers}


def load_state(learner: Learner, state: Mapping[str, Any]) -> None:
    """Put a checkpoint's weights, memory, generator and optimizers back.

    The state of a generator means nothing on another kind of device: it begins anew there.
    """
    try:
        other_device = state["device"] != learner.class_mask.device.type
        generator = {"_extra_state": learner.get_extra_state()} if other_device else {}
        learner.load_state_dict({**state["learner"], **generator})
        for name, optimizer in learner.optimizers().items():
            optimizer.load_state_dict(state["optimizers"][name])
    except (*DAMAGES, RuntimeError) as error:
        raise ValueError(
            f"the checkpoint does not match the learner; has its code changed? ({reason(error)})"
        ) from error
