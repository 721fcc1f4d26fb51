"""Evaluation of the weights, and their model card."""

from __future__ import annotations

import platform
import shlex
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.engine import Engine
from dualnet.image_ops import network_input
from dualnet.nets import Encoder, Head, pooled
from starter.images import Images

BATCH = 500  # images per forward pass

CARD = """# starter, width {width}

Pretrained weights of DualNet's slow learner (`src/dualnet/nets/encoder.py`), for use with few images:
`learner: {{name: dualnet, encoder: {{width: {width}, weights: starter}}}}`. Documentation: docs/encoders.md.

| | |
| --- | --- |
| data | miniImageNet at {image_size} px, 100 classes, and drawn characters (no digit, not A to J) |
| images | {learned} photos and {drawn} drawn characters learned, {held_out} photos held out ({per_class} a class) |
| loss | cross-entropy and {twins_weight} x Barlow Twins on two views of {view_size} px of each image |
| views | crops, flips, colour jitter; some grey, inverted, or with fewer pixels (starter/views.py) |
| weights | averaged, of SGD (momentum {momentum}, rate {lr} decaying to 0, weight decay {weight_decay}) |
| steps | {steps} of {batch_size} images ({epochs:.0f} epochs), seed {seed} |
| accuracy, held out | {by_head:.1%} by its linear classifier, {by_mean:.1%} by the nearest class mean |
| command | `{command}` |
| hardware | {machine}, torch {torch}, {seconds:.0f} s |
| stored as | convolutions in float16, BatchNorm in float32 |

Input: RGB, normalised by ImageNet's mean and standard deviation, as by every learner of this package.

Not for benchmarks with classes that it was trained on: runs on miniImageNet and Tiny ImageNet do not accept it.
miniImageNet is a subset of ImageNet, whose terms allow research and education only.
"""


class Accuracy(NamedTuple):
    by_head: float
    by_mean: float


@torch.no_grad()
def evaluate(encoder: Encoder, head: Head, engine: Engine, learned: Images, held_out: Images) -> Accuracy:
    """Accuracy on the held-out images, by the trained head and by the nearest class mean."""
    encoder.eval()
    train, test = (features(encoder, engine, part.images) for part in (learned, held_out))
    classes = F.one_hot(learned.labels, head.out_features).float()
    means = F.normalize(classes.T @ F.normalize(train, dim=1), dim=1)
    answers = head(test).argmax(dim=1), (F.normalize(test, dim=1) @ means.T).argmax(dim=1)
    return Accuracy(*((answer == held_out.labels).float().mean().item() for answer in answers))


def features(encoder: Encoder, engine: Engine, images: Tensor) -> Tensor:
    """Features of images without augmentation, float [N, channels]."""
    size = images.shape[2], images.shape[3]
    with engine.autocast():
        each = [pooled(encoder(network_input(part, size))[-1]).float() for part in images.split(BATCH)]
    return torch.cat(each)


def machine(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()


def card(accuracy: Accuracy, command: list[str], device: torch.device, **facts: object) -> str:
    """The model card, Markdown."""
    words = {"command": shlex.join(command), "machine": machine(device), "torch": torch.__version__}
    return CARD.format(**accuracy._asdict(), **words, **facts)
