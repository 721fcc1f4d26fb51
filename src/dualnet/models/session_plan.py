"""What a session of `dualnet learn` is: its options, the model it starts from, and where it is saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualnet.data.decode import MAX_SIZE, OnError
from dualnet.experiments import checkpoint
from dualnet.experiments.model_folder import ModelFolder
from dualnet.experiments.record import digest_of
from dualnet.experiments.run_folder import same_folder
from dualnet.models.held_out import HeldOut
from dualnet.models.model import NEW_MODEL, Model, check_place
from dualnet.options import check_at_least, flatten

GRADIENT_OPTIONS = ("lr", "updates", "replay_size", "replay_weight", "unlabelled", "joint_statistics", "soft_labels")
GRADIENT_OPTIONS += ("adapter_norm", "augment", "augment_replay", "crop_area")
MODEL_OPTIONS = ("learner", "image_size", "seed", "held_out_every")


@dataclass(frozen=True)
class LearnOptions:
    """Options of a session. From `learner` on they are those of a new model, and later sessions keep them."""

    train: str  # the folder of the images, with a sub-folder for each class
    unlabelled: str | None = None  # a folder of images without a class
    test: str | None = None  # a folder with a sub-folder for each class
    on_error: OnError = "stop"
    task: int | None = None  # of a task-aware model
    batch_size: int | None = None  # in a step; None: 100 with a closed-form head on a frozen encoder, else 10
    epochs: int = 1  # passes over the images
    learner: dict[str, Any] = field(default_factory=lambda: dict(NEW_MODEL))
    image_size: int = 64  # side in pixels
    seed: int = 0  # the order of the images follows from it too
    held_out_every: int = 0  # about one image in so many is not learned, but tested; 0: none

    def __post_init__(self) -> None:
        HeldOut(self.held_out_every)  # checks it
        check_at_least(self, 1, "epochs")
        check_at_least(self, 1, "image_size", most=MAX_SIZE)
        for option, other in (("--unlabelled", self.unlabelled), ("--test", self.test)):
            if other is not None and same_folder(other, self.train):
                raise ValueError(f"{option} {other}: is the folder of the training images; name another one")


def new_model(options: LearnOptions, device: str) -> Model:
    label_share = 0.0 if options.unlabelled else 1.0
    given = {"learner": options.learner, "image_size": options.image_size, "seed": options.seed}
    model = Model.create(**given, device=device, label_share=label_share)
    if model.learner.closed_form is not None:
        check_has_effect(options.learner)
    model.held_out = HeldOut(options.held_out_every)
    return model


def check_has_effect(learner: Mapping[str, Any]) -> None:
    """Raises ValueError for options of gradient steps, of which a closed-form head needs none."""
    if without := [option for option in flatten(learner) if option.partition(".")[0] in GRADIENT_OPTIONS]:
        remedy = "leave it out, or choose another preset: few_images keeps the encoder, best trains it too"
        raise ValueError(f"learner.{without[0]}: has no effect with a closed-form head; {remedy}")


def digest_source(source: Path | None, options: LearnOptions) -> str:
    """Identifies what a session starts from: the newest checkpoint of a folder, or the options of a new model."""
    if source is None:
        return digest_of({option: getattr(options, option) for option in MODEL_OPTIONS})
    return checkpoint.newest_digest(ModelFolder(source).checkpoints)


def check_out(out: Path, options: LearnOptions) -> None:
    """Raises ValueError if the model cannot be saved to this path, or would be taken for images."""
    check_place(out)
    for folder in filter(None, (options.train, options.test, options.unlabelled)):
        if out.resolve().is_relative_to(Path(folder).expanduser().resolve()):
            raise ValueError(f"--out {out}: is inside of {folder}, a folder of images; choose a folder outside of it")
