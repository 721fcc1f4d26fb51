"""Options shared by several learners, with their defaults and checks. A learner's Config inherits from one of them."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from dualnet.image_ops import CROP_AREA, Augment, Normalisation
from dualnet.losses import SoftLabelMean, SoftLabelOrder, soft_label_loss
from dualnet.memory import MemoryConfig, Replay
from dualnet.nets.classifier import Heads
from dualnet.nets.closed_form import Kind
from dualnet.nets.pretrained import LITE0_MODEL
from dualnet.nets.timm_encoder import PREFIX
from dualnet.nets.weights import LITE0, PRETRAINED, STARTER
from dualnet.options import check_at_least, check_fields, check_range

Answer = Literal["heads", "last", Kind]
Statistics = Literal["running", "batch", "train"]


@dataclass(frozen=True)
class EncoderOptions:
    """The encoder of a learner."""

    name: str = "resnet18"  # resnet18 | timm/MODEL | import path of a class or function that returns a module
    width: int = 20  # channels of the first stage of resnet18; 64 is the full ResNet18
    options: dict[str, Any] = field(default_factory=dict, hash=False)  # keyword arguments of any other encoder
    weights: str | None = None  # initial: starter, lite0, pretrained (of timm), or a safetensors file; None: random
    lr: float | None = None  # learning rate; 0: frozen; None: that of the learner

    def __post_init__(self) -> None:
        check_fields(self)
        if self.name == "resnet18" and self.options:
            raise ValueError(f"options: {self.options} are for other encoders; set name as well, or use width")
        made_for = {STARTER: "resnet18", LITE0: PREFIX + LITE0_MODEL, PRETRAINED: f"{PREFIX}MODEL"}
        kind = f"{PREFIX}MODEL" if self.weights == PRETRAINED and self.name.startswith(PREFIX) else self.name
        if self.weights in made_for and kind != made_for[self.weights]:
            needed = made_for[self.weights]
            raise ValueError(f"weights: {self.weights} is for {needed}; give a safetensors file for {self.name}")


@dataclass(frozen=True)
class SoftLabelOptions:
    """Soft labels: the logits of stored examples, which the learner is to keep."""

    weight: float  # of their loss
    temperature: float  # tau
    mean: SoftLabelMean = "class"  # KL divergence per example: averaged or summed over classes
    order: SoftLabelOrder = "stored_first"  # of KL's arguments; the paper's equation 7: current_first
    missing: Literal["skip", "slot"] = "skip"  # an example without any: left out; the authors: what its slot holds
    # batch: those of up to 64 stored examples in a pass. train: training mode, those of 64 or of the rest, which the
    # running statistics follow.
    statistics: Statistics = "running"  # BatchNorm's, at the end of a task; the authors: train

    def __post_init__(self) -> None:
        check_fields(self, temperature=1e-6)

    def check_beside(self, ema_rate: float) -> None:
        if self.statistics == "train" and ema_rate > 0:
            raise ValueError("soft_labels.statistics: train would not use the averaged weights of ema_rate; use batch")

    def loss(self, logits: Tensor, replay: Replay) -> Tensor:
        counts = replay.stored if self.missing == "slot" else replay.has_logits
        return soft_label_loss(logits, replay.logits, counts, self.temperature, self.mean, self.order)


@dataclass(frozen=True)
class CommonOptions:
    """Options of a learner."""

    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    lr: float = 0.03
    ema_rate: float = 0.0  # rate of an exponential moving average of the weights that predicts; 0: no average
    normalisation: Normalisation = "imagenet"  # of the supervised input; the authors, if task-free: half
    augment: Augment = "none"  # augmentation of training images; the paper's -Aug: views, or crop if task-free
    crop_area: tuple[float, float] = CROP_AREA  # for resized_crop and random_crop: range of the share of the area

    def __post_init__(self) -> None:
        check_fields(self)
        check_at_least(self, 0, "ema_rate", most=1)
        check_range(self, "crop_area", 1)
        if self.normalisation != "imagenet" and self.encoder.weights is not None:
            raise ValueError(f"normalisation: {self.normalisation} is for random weights; others need imagenet")


@dataclass(frozen=True)
class MemoryOptions(CommonOptions):
    """Options of a learner with an episodic memory."""

    replay_size: int = 10  # examples per draw from the memory
    augment_replay: Literal["same", "none", "views", "crop", "resized_crop", "random_crop"] = "same"  # of the replay
    unlabelled: Literal["skip", "replay"] = "skip"  # batches without labels: no update, or updates on replay only
    joint_statistics: bool = False  # normalise batch and replay as one batch, for tasks that look different
    memory: MemoryConfig = field(default_factory=MemoryConfig)


@dataclass(frozen=True)
class ReplayOptions(MemoryOptions):
    """Options of a learner that replays the memory in a number of updates per batch."""

    updates: int = 2  # gradient steps per batch
    replay_weight: float = 1.0  # weight of the label loss of the replay; the batch has weight 1
    heads: Heads = "last"  # linear heads: on the last map, or on the map of every level, whose losses are added
    # What predicts: the mean of the heads, the last one, or a closed-form head on the examples in the memory.
    answer: Answer = "heads"
    answer_levels: int = 2  # the last levels whose features the closed-form head uses
    answer_mirrored: bool = False  # whether it is fitted to mirror images too, and predicts the mean of both
    teacher_weight: float = 0.0  # of the divergence from the answers of the averaged weights to batch and replay

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "answer_levels")
        if self.teacher_weight and not self.ema_rate:
            raise ValueError(f"teacher_weight: {self.teacher_weight} needs averaged weights; set ema_rate as well")
