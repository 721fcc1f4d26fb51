"""Presets of DualNet: named sets of options, used as `learner: {name: dualnet, preset: best}`."""

from collections.abc import Mapping
from typing import Any

from dualnet.options import choose, merged

# Chosen on validation tasks by experiments/search/beyond-*.yaml; results/README.md describes how.
AVERAGED = {"slow_rounds": 0, "ema_rate": 0.02, "joint_statistics": True}
TASK_FREE = {
    **AVERAGED,
    "augment": "resized_crop",
    "updates": 8,
    "replay_size": 20,
    "replay_weight": 4.0,
    "soft_labels": "insertion",  # better on the validation tasks than at task boundaries
    "soft_label_mean": "example",
    "soft_label_weight": 1.2,
    "memory": {"slots_per_class": 100},
}
BEST: dict[str, dict[str, Any]] = {
    "task_aware": {**AVERAGED, "updates": 3, "slow_rounds": 3, "slow_optimizer": "sgd", "slow_statistics": "keep"},
    "task_free_boundaries": TASK_FREE,
    "task_free": TASK_FREE,
}
# Updates on replay for batches without labels too, and a slow phase of plain SGD on all images.
ALL_IMAGES: dict[str, Any] = {
    "unlabelled": "replay",
    "slow_source": "memory_and_batch",
    "slow_optimizer": "sgd",
    "inner_steps": 1,
    "slow_lr": 1e-3,
    "slow_statistics": "keep",
}
# Merged into BEST if the share of labels is below FEW_LABELS_BELOW.
FEW_LABELS: dict[str, Any] = {
    **ALL_IMAGES,
    "augment": "resized_crop",
    "memory": {"replay": "all"},
    "slow_rounds": 8,
    "views": {"normalisation": "imagenet"},
}
FEW_LABELS_BELOW = 0.5
# For a few dozen images per class: the starter's encoder is frozen, and batch and replay are weighted by their size, 10
# and 40 images. docs/encoders.md describes how these options were chosen.
FEW_IMAGES: dict[str, Any] = {
    "width": 32,
    "start": "starter",
    "encoder_lr": 0.0,
    "lr": 0.12,
    "slow_rounds": 0,
    "joint_statistics": True,
    "updates": 4,
    "replay_size": 40,
    "replay_weight": 4.0,
    "soft_label_weight": 0.0,
    "memory": {"slots_per_class": 100},
}
# For an encoder that starts from the starter's weights and is trained: width 32 takes 1.9 times as long.
STARTER: dict[str, Any] = {"width": 20, "start": "starter"}
# For `dualnet serve`: steps of 0.4 s on one core at 48 pixels, because a new example has to wait for the current step.
# The encoder is trained, which is the purpose of the background steps.
LIVE: dict[str, Any] = {
    **AVERAGED,
    **STARTER,
    **ALL_IMAGES,
    "updates": 3,
    "replay_size": 12,
    "slow_rounds": 1,
    "slow_batch_size": 8,
    "soft_labels": "insertion",
    "soft_label_mean": "example",
    "soft_label_weight": 1.0,
    "memory": {"slots_per_class": 100},
}
# The authors' code where it differs from the defaults, and the values printed in the paper: the rows of
# `dualnet reproduce --settings authors` and `paper`.
RESERVOIR: dict[str, Any] = {"memory": {"slots_per_class": 100}}
UNLABELLED_IMAGES: dict[str, Any] = {"slow_source": "memory_and_batch"}
AUTHORS: dict[str, Any] = {"soft_label_statistics": "batch"}
AUTHORS_TASK_FREE: dict[str, Any] = {**RESERVOIR, "soft_label_weight": 100.0}
AUTHORS_FEW_LABELS: dict[str, Any] = {
    **UNLABELLED_IMAGES,
    "slow_rounds": 2,
    "replay_size": 32,
    "slow_lr": 1e-3,
    "slow_momentum": 0.9,
    "slow_weight_decay": 5e-4,
}
PAPER = {"width": 20, "beta": 0.5, "adapter_norm": "map", "soft_label_weight": 2.0, "soft_label_mean": "example"}
PAPER_TASK_FREE: dict[str, Any] = {**RESERVOIR, "soft_labels": "insertion"}
NAMES = ("best", "few_images", "live", "authors", "paper")


def apply_preset(learner: Mapping[str, Any], protocol: str, label_share: float) -> dict[str, Any]:
    """The options of the preset that a learner names, overridden by the other options of the learner."""
    if learner.get("name") != "dualnet":
        raise ValueError(f"learner.preset: {learner.get('name')} has no presets; remove preset, or use name dualnet")
    chosen = choose(learner["preset"], NAMES, "learner.preset")
    few_labels, task_free = label_share < FEW_LABELS_BELOW, protocol != "task_aware"
    best = merged(BEST[protocol], FEW_LABELS if few_labels else {})
    if learner.get("encoder_lr") == 0 and not few_labels:
        best["slow_rounds"] = 0  # there is nothing for the slow phase to train
    few_images = STARTER | best if few_labels else FEW_IMAGES  # with few labels the encoder is trained as well
    at_insertion = protocol == "task_free" or learner.get("soft_labels") == "insertion"
    authors = {
        **({} if at_insertion else AUTHORS),
        **(AUTHORS_TASK_FREE if task_free else {}),
        **(AUTHORS_FEW_LABELS if few_labels else {}),
    }
    paper = PAPER | (PAPER_TASK_FREE if task_free else {}) | (UNLABELLED_IMAGES if few_labels else {})
    presets = {"best": best, "few_images": few_images, "live": LIVE, "authors": authors, "paper": paper}
    return merged(presets[chosen], {option: value for option, value in learner.items() if option != "preset"})
