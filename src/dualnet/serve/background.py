"""When the background trains: within a share of one core, up to some steps per example, until its loss is flat."""

import time
from collections import deque
from typing import Literal

from dualnet.serve.options import Options

MIN_DECREASE = 0.01  # relative decrease of the loss below which it counts as flat

Activity = Literal["off", "paused", "nothing to learn from", "all steps done", "flat", "learning"]


class Background:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.paused = False
        self.steps = 0  # in total
        self.steps_since_taught = 0
        self.losses: deque[float] = deque(maxlen=2 * options.flat_steps)
        self.resume_at = 0.0  # on the monotonic clock
        self.has_images = False

    def activity(self, received: int) -> Activity:
        """What the background does now, given the number of examples received."""
        if not self.options.has_background:
            return "off"
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

    def on_new_entries(self, taught: bool) -> None:
        """Start measuring the loss afresh. `taught`: a class or a label is among the journal entries."""
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
