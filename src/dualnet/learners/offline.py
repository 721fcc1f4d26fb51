"""Offline: several epochs over the data of all tasks together. An upper bound, not a continual learner."""

from dataclasses import dataclass
from typing import Any

from dualnet.learners import finetune


@dataclass(frozen=True)
class Config(finetune.Config):
    """The options of Offline. DualNet's paper gives only the epochs; the learning rate is that of its baselines."""

    updates: int = 1  # gradient steps per batch
    epochs: int = 3  # passes over the data of all tasks, each in a new order


class Offline(finetune.Finetune):
    """The upper bound: every update minimises CE(batch), with batches drawn from all tasks together."""

    Config = Config

    @classmethod
    def epochs_over_all(cls, config: Any) -> int:
        return config.epochs
