"""The training data: the images of miniImageNet, some held out, and drawn characters as additional classes."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.data.benchmark import Benchmark
from dualnet.data.mini_imagenet import MiniImageNet


class Images(NamedTuple):
    images: Tensor  # uint8 [N, 3, H, W]
    labels: Tensor  # int64 [N]

    def to(self, device: torch.device) -> "Images":
        return Images(self.images.to(device), self.labels.to(device))


def read(root: str, image_size: int, num_held_out: int, cache: str | None) -> tuple[Images, Images]:
    """Training images, and held-out ones: the first test images of every class. Decoded by all cores, then cached."""
    config = MiniImageNet(root, image_size=image_size, cache=cache)
    parts: list[list[Images]] = [[], []]
    first = 0
    for benchmark in (config.make(), config.make_validation()):
        for learned, held_out in split(benchmark, num_held_out):
            parts[0].append(Images(learned.images, learned.labels + first))
            parts[1].append(Images(held_out.images, held_out.labels + first))
        first += benchmark.spec.num_classes
    learned, held_out = (Images(*map(torch.cat, zip(*part, strict=True))) for part in parts)
    return learned, held_out


def split(benchmark: Benchmark, num_held_out: int) -> list[tuple[Images, Images]]:
    """Training and held-out images of each task."""
    out = []
    for task in benchmark.tasks:
        train, test = Images(*task.train.load()), Images(*task.test.load())
        held = torch.zeros(len(test.labels), dtype=torch.bool)
        for label in test.labels.unique():
            held[(test.labels == label).nonzero()[:num_held_out]] = True
        learned = (torch.cat([a, b[~held]]) for a, b in zip(train, test, strict=True))
        out.append((Images(*learned), Images(test.images[held], test.labels[held])))
    return out


def read_glyphs(file: str, image_size: int, first: int) -> Images:
    """The output of `starter.glyphs`, as images of the given size with labels from `first` on."""
    with np.load(file) as arrays:
        drawn, labels = (torch.from_numpy(arrays[name]) for name in ("images", "labels"))
    pixels = F.interpolate(drawn.unsqueeze(1).float(), (image_size, image_size), mode="bilinear")
    return Images(pixels.round().byte().repeat(1, 3, 1, 1), labels + first)
