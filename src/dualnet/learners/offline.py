"""Offline: some epochs over the data of all tasks together. The upper bound, which a stream does not allow."""

from dataclasses import dataclass
from typing import Any

from dualnet.learners import finetune


@dataclass(frozen=True)
class Config(finetune.Config):
    """The options of Offline. DualNet's paper gives the epochs alone: the rate is that of its baselines."""

    updates: int = 1  # gradient steps per batch
    epochs: int = 3  # passes over all tasks mixed together, each in an order of its own


class Offline(finetune.Finetune):
    """The upper bound: every update minimises CE(batch), with batches from all tasks mixed together."""

    Config = Config

    @classmethod
    def epochs_over_all(cls, config: Any) -> int:
        return config.epochs
