"""Options that several learners share, with their defaults and checks: the Config of a learner inherits from one."""

from dataclasses import dataclass, field
from typing import Any, get_type_hints

from dualnet.image_ops import Augment
from dualnet.memory import MemoryConfig
from dualnet.options import check_at_least, check_choices


@dataclass(frozen=True)
class TrainingOptions:
    """One network, trained by SGD on labels."""

    width: int = 20  # channels of the network's first stage; 64 is the full ResNet18
    lr: float = 0.03
    updates: int = 2  # gradient steps per batch
    augment: Augment = "none"  # what an update sees of images: a random view (the paper's -Aug), or crop (task-free)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class ReplayOptions(TrainingOptions):
    """The same with an episodic memory."""

    replay_size: int = 10  # examples of a draw from the memory
    joint_statistics: bool = False  # one BatchNorm over batch and replay, for tasks that look different; else one each
    memory: MemoryConfig = field(default_factory=MemoryConfig)


def check_options(config: Any, **smallest: float) -> None:
    """Every choice is one of its type's, every int is at least 1 and every float at least 0, or what is said here."""
    for option, hint in get_type_hints(type(config)).items():
        if hint in (int, float):
            check_at_least(config, smallest.get(option, 1 if hint is int else 0), option)
    check_choices(config)
