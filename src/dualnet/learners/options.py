"""Options shared by several learners, with their defaults and checks. A learner's Config inherits from one of them."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from dualnet.image_ops import CROP_AREA, Augment
from dualnet.memory import MemoryConfig
from dualnet.options import check_at_least, check_choices, check_range, type_hints


@dataclass(frozen=True)
class CommonOptions:
    """Options of a network that is trained on labels by SGD."""

    width: int = 20  # channels of the network's first stage; 64 is the full ResNet18
    start: str | None = None  # initial weights of the encoder: starter, or a safetensors file; None: random
    encoder: str | None = None  # a custom encoder: an import path, or timm; None: a ResNet18 of this width
    encoder_options: dict[str, Any] = field(default_factory=dict, hash=False)  # keyword arguments of the custom encoder
    weights: str | None = None  # initial weights of the custom encoder: a safetensors file; None: as constructed
    lr: float = 0.03
    encoder_lr: float | None = None  # learning rate of the encoder; 0: frozen; None: lr
    ema_rate: float = 0.0  # rate of an exponential moving average of the weights that predicts; 0: no average
    augment: Augment = "none"  # augmentation of training images; the paper's -Aug: views, or crop if task-free
    crop_area: tuple[float, float] = CROP_AREA  # for resized_crop: smallest and largest share of the area

    MINIMUM: ClassVar[dict[str, float]] = {}  # smallest values other than 1 (int) and 0 (float)

    def __post_init__(self) -> None:
        check_choices(self)
        for option, hint in type_hints(type(self)).items():
            if hint in (int, float):
                check_at_least(self, self.MINIMUM.get(option, 1 if hint is int else 0), option)
        check_at_least(self, 0, "ema_rate", most=1)
        check_range(self, "crop_area", 1)
        if self.encoder_lr is not None:
            check_at_least(self, 0, "encoder_lr")
        if self.encoder is None and (self.weights is not None or self.encoder_options):
            option = "encoder_options" if self.weights is None else "weights"
            raise ValueError(f"{option}: applies to a custom encoder only; set encoder as well, or use start")
        if self.encoder is not None and self.start is not None:
            raise ValueError(f"start: {self.start} applies to the built-in encoder only; with encoder, use weights")


@dataclass(frozen=True)
class MemoryOptions(CommonOptions):
    """Options of a learner with an episodic memory."""

    replay_size: int = 10  # examples per draw from the memory
    augment_replay: Literal["same", "none", "views", "crop", "resized_crop"] = "same"  # augmentation of the replay
    unlabelled: Literal["skip", "replay"] = "skip"  # batches without labels: no update, or updates on replay only
    joint_statistics: bool = False  # normalise batch and replay as one batch, for tasks that look different
    memory: MemoryConfig = field(default_factory=MemoryConfig)


@dataclass(frozen=True)
class ReplayOptions(MemoryOptions):
    """Options of a learner that replays the memory in a number of updates per batch."""

    updates: int = 2  # gradient steps per batch
    replay_weight: float = 1.0  # weight of the label loss of the replay; the batch has weight 1


def option(config: Any, name: str) -> Any:
    """The value of an option; the default of MemoryOptions if the Config of a learner does not have it."""
    return getattr(config if hasattr(config, name) else MemoryOptions, name)
