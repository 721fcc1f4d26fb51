"""When the background learns: a share of the processor's time, not once its loss is flat, some steps per example."""

import time
from collections import deque
from typing import Literal

from dualnet.serve.options import Options

FALL = 0.01  # of the loss, below which it counts as flat

Activity = Literal["off", "paused", "nothing to learn from", "all steps done", "flat", "learning"]


class Background:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.paused = False
        self.steps = 0  # done ever
        self.steps_since_taught = 0
        self.losses: deque[float] = deque(maxlen=2 * options.flat_steps)
        self.resume_at = 0.0  # on the monotonic clock
        self.ready = False  # there is something to learn from

    def activity(self, received: int) -> Activity:
        """What it does now, after so many examples."""
        if not self.options.has_background:
            return "off"
        if self.paused:
            return "paused"
        if not self.ready:
            return "nothing to learn from"
        if self.steps >= received * self.options.steps_per_example:
            return "all steps done"
        return "flat" if self.is_flat() else "learning"

    def is_flat(self) -> bool:
        losses, half = list(self.losses), self.options.flat_steps
        return len(losses) == 2 * half and sum(losses[half:]) > (1 - FALL) * sum(losses[:half])

    def news(self, taught: bool) -> None:
        """Something came, a class or a label if it was taught: what was flat need not stay so."""
        self.losses.clear()
        self.steps_since_taught = 0 if taught else self.steps_since_taught
        self.ready = True

    def done(self, seconds: float, loss: float) -> None:
        """A step that took as long; the next one waits until the share is kept."""
        self.steps += 1
        self.steps_since_taught += 1
        self.losses.append(loss)
        self.resume_at = time.monotonic() + seconds * (1 / self.options.share - 1)

    def wait(self) -> float:
        """Seconds to the next step."""
        return max(0.0, self.resume_at - time.monotonic())
