"""What the learner trains on and when: batches of journal entries, the background; catching up of averaged weights."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from dualnet.learners.ema import WARM_UP
from dualnet.models.model import Model
from dualnet.serve.journal import Entry
from dualnet.serve.options import Options

MAX_CATCH_UP_STEPS = 3  # after which an eighth of the old average is left
MIN_DECREASE = 0.01  # relative decrease of the loss below which it counts as flat

Activity = Literal["off", "frozen encoder", "paused", "nothing to learn from", "all steps done", "flat", "learning"]


def next_batch(entries: Sequence[Entry], options: Options) -> list[Entry]:
    """The leading entries that are learned together; none if the first entry is not learned at all."""
    batch: list[Entry] = []
    for entry in entries[: options.batch_size]:
        other_request = options.synchronous and entry.request != entries[0].request
        if not is_learned(entry, options) or other_request or entry.example in [other.example for other in batch]:
            break
        batch.append(entry)
    return batch


def is_learned(entry: Entry, options: Options) -> bool:
    has_label = entry.label is not None or options.synchronous  # otherwise the background learns from the image
    return entry.kind in ("example", "label") and entry.pixels is not None and not entry.held_out and has_label


def catch_up(model: Model, images: Tensor, labels: Sequence[str | None]) -> None:
    """Move the averaged weights halfway to the current ones while a learned image is misclassified.

    At its usual rate the average needs about 20 background steps to follow, which is 10 seconds on one core.
    """
    average = model.learner.ema
    if average is None:
        return
    for _ in range(MAX_CATCH_UP_STEPS):
        predictions = model.predict(images, top=1)
        if all(label in (None, best.name) for label, best in zip(labels, predictions, strict=True)):
            return
        average.steps.fill_(WARM_UP)  # sets the rate to one half
        average.update(model.learner)


class Background:
    """Trains within a share of one core, up to some steps per example, until its loss is flat.

    `trainable`: whether the model has weights to train; a closed-form head on a frozen encoder has none.
    """

    def __init__(self, options: Options, progress: Mapping[str, int], trainable: bool, paused: bool = False) -> None:
        self.options, self.trainable, self.paused = options, trainable, paused
        self.steps = progress["steps"]  # in total
        self.steps_since_taught = progress["steps_since_taught"]
        self.has_images = progress["position"] > 0
        self.losses: deque[float] = deque(maxlen=2 * options.flat_steps)
        self.resume_at = 0.0  # on the monotonic clock

    def progress(self) -> dict[str, int]:
        """What is saved with the model."""
        return {"steps": self.steps, "steps_since_taught": self.steps_since_taught}

    def activity(self, received: int) -> Activity:
        """What the background does now, given the number of examples received."""
        if not self.options.has_background:
            return "off"
        if not self.trainable:
            return "frozen encoder"
        if self.paused:
            return "paused"
        if not self.has_images:
            return "nothing to learn from"
        if self.steps >= received * self.options.steps_per_example:
            return "all steps done"
        return "flat" if self.is_flat() else "learning"

    def is_flat(self) -> bool:
        losses, half = list(self.losses), self.options.flat_steps
        return len(losses) == 2 * half and sum(losses[half:]) > (1 - MIN_DECREASE) * sum(losses[:half])

    def pause(self, paused: bool) -> None:
        """Pause, or resume and start measuring the loss again."""
        self.paused = paused
        self.losses.clear()

    def on_new_entries(self, taught: bool) -> None:
        """Start measuring the loss again. `taught`: a class or a label is among the journal entries."""
        self.losses.clear()
        self.steps_since_taught = 0 if taught else self.steps_since_taught
        self.has_images = True

    def on_step(self, seconds: float, loss: float) -> None:
        """Record a step, and delay the next one as `--share` requires."""
        self.steps += 1
        self.steps_since_taught += 1
        self.losses.append(loss)
        self.resume_at = time.monotonic() + seconds * (1 / self.options.share - 1)

    def delay(self) -> float:
        """Seconds until the next step may start."""
        return max(0.0, self.resume_at - time.monotonic())
