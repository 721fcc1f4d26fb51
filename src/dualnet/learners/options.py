"""Options that several learners share, with their defaults and checks: the Config of a learner inherits from one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_type_hints

from dualnet.image_ops import Augment
from dualnet.memory import MemoryConfig
from dualnet.options import check_at_least, check_choices


@dataclass(frozen=True)
class TrainingOptions:
    """One network, trained by SGD on labels. Every integer option is at least 1, every float option at least 0."""

    width: int = 20  # channels of the network's first stage; 64 is the full ResNet18
    lr: float = 0.03
    updates: int = 2  # gradient steps per batch
    augment: Augment = "none"  # what an update sees of images: a random view (the paper's -Aug), or crop (task-free)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for kind, smallest in ((int, 1), (float, 0)):
            check_at_least(self, smallest, *(option for option, hint in hints.items() if hint is kind))
        check_choices(self)


@dataclass(frozen=True)
class ReplayOptions(TrainingOptions):
    """The same with an episodic memory."""

    replay_size: int = 10  # examples of a draw from the memory
    joint_statistics: bool = False  # one BatchNorm over batch and replay, for tasks that look different; else one each
    memory: MemoryConfig = field(default_factory=MemoryConfig)
