"""Options that several learners share, with their defaults and checks: the Config of a learner inherits from one."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_type_hints

from dualnet.image_ops import CROP_AREA, Augment
from dualnet.memory import MemoryConfig
from dualnet.options import check_at_least, check_choices, check_range


@dataclass(frozen=True)
class CommonOptions:
    """One network, trained by SGD on labels."""

    width: int = 20  # channels of the network's first stage; 64 is the full ResNet18
    start: str | None = None  # what the encoder's weights begin with: starter, or a file in safetensors; None: random
    encoder: str | None = None  # another encoder: an import path, or timm; None: a ResNet18 of that width
    encoder_options: dict[str, Any] = field(default_factory=dict, hash=False)  # what it is made with
    weights: str | None = None  # what that one begins with: a file in safetensors; None: as it is made
    lr: float = 0.03
    encoder_lr: float | None = None  # of the encoder; 0: it is frozen; None: lr
    ema_rate: float = 0.0  # of an exponential moving average of the weights, which predicts; 0: the weights predict
    augment: Augment = "none"  # what an update sees of images; the paper's -Aug: views, and crop if task-free
    crop_area: tuple[float, float] = CROP_AREA  # of augment: resized_crop: the share of the image's area, from, to

    SMALLEST: ClassVar[dict[str, float]] = {}  # what an option is at least, where it is not 1 (int) or 0 (float)

    def __post_init__(self) -> None:
        check_choices(self)
        for option, hint in get_type_hints(type(self)).items():
            if hint in (int, float):
                check_at_least(self, self.SMALLEST.get(option, 1 if hint is int else 0), option)
        check_at_least(self, 0, "ema_rate", most=1)
        check_encoder(self)
        check_range(self, "crop_area", 1)


def check_encoder(config: CommonOptions) -> None:
    """Raises ValueError for options that would be ignored."""
    if config.encoder is None and (config.weights is not None or config.encoder_options):
        option = "encoder_options" if config.weights is None else "weights"
        raise ValueError(f"{option}: belongs to an encoder by its import path; give encoder too, or start")
    if config.encoder is not None and config.start is not None:
        raise ValueError(f"start: {config.start} is for the package's own encoder; with encoder give weights")
    if config.encoder_lr is not None:
        check_at_least(config, 0, "encoder_lr")


@dataclass(frozen=True)
class MemoryOptions(CommonOptions):
    """The same with an episodic memory."""

    replay_size: int = 10  # examples of a draw from the memory
    augment_replay: Literal["same", "none", "views", "crop", "resized_crop"] = "same"  # what it sees of the replay
    unlabelled: Literal["skip", "replay"] = "skip"  # at a batch without labels: no updates, or updates on replay alone
    joint_statistics: bool = False  # one BatchNorm over batch and replay, for tasks that look different; else one each
    memory: MemoryConfig = field(default_factory=MemoryConfig)


@dataclass(frozen=True)
class ReplayOptions(MemoryOptions):
    """With one, and a number of updates."""

    updates: int = 2  # gradient steps per batch
    replay_weight: float = 1.0  # of the replay's label loss; that of the batch has 1
