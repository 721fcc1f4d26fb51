"""Presets: named sets of options of DualNet, and one of CTN, used as `learner: {name: dualnet, preset: best}`."""

from collections.abc import Mapping
from functools import reduce
from typing import Any

from dualnet.options import choose, merge

Options = dict[str, Any]

# Chosen on validation tasks by experiments/search/beyond-*.yaml; results/notes/dualnet.md describes how.
AVERAGED: Options = {"ema_rate": 0.02, "joint_statistics": True, "slow": {"rounds": 0}}
TASK_FREE: Options = {
    **AVERAGED,
    "augment": "resized_crop",
    "updates": 8,
    "replay_size": 20,
    "replay_weight": 4.0,
    "soft_labels": {"when": "insertion", "mean": "example", "weight": 1.2},  # also better than at task boundaries
    "memory": {"slots_per_class": 100},
}
BEST: dict[str, Options] = {
    "task_aware": {**AVERAGED, "updates": 3, "slow": {"rounds": 3, "optimizer": "sgd", "statistics": "keep"}},
    "task_free_boundaries": TASK_FREE,
    "task_free": TASK_FREE,
}
# A slow phase of plain SGD on all images, also those without a label.
ALL_IMAGES: Options = {
    "source": "memory_and_batch",
    "optimizer": "sgd",
    "inner_steps": 1,
    "lr": 1e-3,
    "statistics": "keep",
}
# Merged into BEST if the share of labels is below FEW_LABELS_BELOW.
FEW_LABELS: Options = {
    "unlabelled": "replay",
    "augment": "resized_crop",
    "memory": {"replay": "all"},
    "slow": {**ALL_IMAGES, "rounds": 8},
    "views": {"normalisation": "imagenet"},
}
FEW_LABELS_BELOW = 0.5
# For a few dozen images per class: the starter's encoder is frozen, and batch and replay are weighted by their size, 10
# and 40 images. results/search/few-images.md has the search.
FEW_IMAGES: Options = {
    "encoder": {"width": 32, "weights": "starter", "lr": 0.0},
    "lr": 0.12,
    "joint_statistics": True,
    "updates": 4,
    "replay_size": 40,
    "replay_weight": 4.0,
    "slow": {"rounds": 0},
    "soft_labels": {"weight": 0.0},
    "memory": {"slots_per_class": 100},
}
# The same encoder with a closed-form head, which is better and takes a fiftieth of the time.
LDA: Options = {
    "encoder": {"width": 32, "weights": "starter", "lr": 0.0},
    "head": "lda",
    "slow": {"rounds": 0},
    "memory": {"slots_per_class": 100},
}
# For `dualnet serve`: steps of 0.4 s on one core at 48 pixels, because a new example has to wait for the current step.
# The encoder is trained, which is the purpose of the background steps.
LIVE: Options = {
    **AVERAGED,
    "encoder": {"width": 20, "weights": "starter"},  # width 32 takes 1.9 times as long
    "unlabelled": "replay",
    "updates": 3,
    "replay_size": 12,
    "slow": {**ALL_IMAGES, "rounds": 1, "batch_size": 8},
    "soft_labels": {"when": "insertion", "mean": "example", "weight": 1.0},
    "memory": {"slots_per_class": 100},
}
# The authors' code where it differs from the defaults, and the text of the paper: the rows of
# `dualnet reproduce --settings authors` and `paper`. docs/reproduce.md has a sentence for each option.
AUTHORS: Options = {
    "memory": {"replay_from": "second_task"},
    "soft_labels": {"statistics": "train"},
    "views": {"library": "kornia"},
}
AUTHORS_TASK_FREE: Options = {
    "normalisation": "half",
    "memory": {"slots_per_class": 100},
    "soft_labels": {"weight": 100.0, "missing": "slot"},
}
AUTHORS_FEW_LABELS: Options = {
    "replay_size": 32,
    "slow": {"source": "memory_and_batch", "rounds": 2, "lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4},
}
PAPER: Options = {
    "encoder": {"width": 20},
    "adapter_norm": "map",
    "memory": {"replay": "all"},
    "slow": {"beta": 0.5, "inner_steps": 1},
    "soft_labels": {"weight": 2.0, "mean": "example", "order": "current_first"},
    "views": {"crop_area": [0.08, 1.0], "crop_ratio": [3 / 4, 4 / 3]},
}
OBJECTIVES: dict[str, dict[str, Options]] = {  # options of objectives, by preset
    "authors": {
        "barlow_twins": {"correlation": "sample"},
        "simclr": {"similarity": "standardised", "temperature": 100.0},
    },
    "paper": {"barlow_twins": {"correlation": "uncentred"}},
}
PAPER_TASK_FREE: Options = {"memory": {"slots_per_class": 100}, "soft_labels": {"when": "insertion"}}
PAPER_FEW_LABELS: Options = {"slow": {"source": "memory_and_batch"}}
# CTN's authors: of a task's 50 slots 40 are for replay, and at most as many examples are drawn.
CTN_AUTHORS: Options = {
    "batch_pass": "outer",
    "replay_size": 40,
    "memory": {"replay_from": "second_task"},
    "soft_labels": {"statistics": "train"},
}
OF_OTHERS = {"authors": {"ctn": CTN_AUTHORS}}  # by preset and learner
NAMES = ("best", "lda", "few_images", "trained", "live", "authors", "paper")


def apply_preset(learner: Mapping[str, Any], protocol: str, label_share: float) -> Options:
    """The options of the preset that a learner names, overridden by the other options of the learner."""
    given = {option: value for option, value in learner.items() if option != "preset"}
    preset, name = choose(learner["preset"], NAMES, "learner.preset"), learner.get("name")
    if name != "dualnet":
        if name not in (of_others := OF_OTHERS.get(preset, {})):
            raise ValueError(f"learner.preset: {name} has no preset {preset}; remove preset, or use name dualnet")
        return merge(of_others[name], given)
    few_labels, task_free = label_share < FEW_LABELS_BELOW, protocol != "task_aware"
    best = [BEST[protocol], FEW_LABELS if few_labels else {}]
    presets: dict[str, list[Options]] = {
        "best": best,
        "lda": [LDA],
        "few_images": [FEW_IMAGES],
        "trained": [*best, {"encoder": {"width": 32, "weights": "starter"}}],
        "live": [LIVE],
        "authors": [AUTHORS, AUTHORS_TASK_FREE if task_free else {}, AUTHORS_FEW_LABELS if few_labels else {}],
        "paper": [PAPER, PAPER_TASK_FREE if task_free else {}, PAPER_FEW_LABELS if few_labels else {}],
    }
    options = reduce(merge, presets[preset])
    slow = learner.get("slow")
    objective = slow.get("objective", "barlow_twins") if isinstance(slow, Mapping) else "barlow_twins"
    if isinstance(objective, str) and (its_options := OBJECTIVES.get(preset, {}).get(objective)):
        options = merge(options, {"slow": {"objective_options": its_options}})
    return merge(for_encoder(options, given.get("encoder")), given)


def for_encoder(options: Options, given: Any) -> Options:
    """The options of a preset without the width and the weights of its encoder, if the learner names another one.

    That one is frozen as well if it has weights, or if nothing would train it.
    """
    if not isinstance(given, Mapping) or given.get("name", "resnet18") == "resnet18":
        return options
    encoder = options.get("encoder", {})
    is_frozen = "lr" in encoder and (given.get("weights") is not None or "head" in options)
    kept = {"lr": encoder["lr"]} if is_frozen else {}
    return {**options, "encoder": kept}
