"""Images that sessions of `dualnet learn` hold out: never learned, kept with the model, tested in every session."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualnet.batch import StreamSpec
from dualnet.options import whole_number

MAX_KEPT = 2000  # images, shared equally by the classes


@dataclass(frozen=True)
class HeldOut:
    """About one image in `every` is held out, 0: none; and those that are kept.

    `spared` are digests of images that are learned all the same, since a class had no others.
    """

    every: int = 0
    images: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))  # [N, C, H, W]
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    spared: Sequence[str] = ()  # in hexadecimal

    def __post_init__(self) -> None:
        if whole_number(self.every, "held_out_every", 0) == 1:
            raise ValueError("held_out_every: with 1 no image is learned; give 2 or more, or 0 to hold out none")

    def includes(self, digest: bytes) -> bool:
        """Whether an image with these pixels is held out."""
        return is_held_out(digest, self.every) and digest.hex() not in self.spared

    def with_spared(self, classes: Iterable[Collection[bytes]]) -> "HeldOut":
        """One image of each of these classes, by their digests, is learned if all would be held out."""
        spared = [min(digests).hex() for digests in classes if all(map(self.includes, digests))]
        return replace(self, spared=(*self.spared, *spared))

    def with_images(self, images: Iterable[np.ndarray], labels: Iterable[int]) -> "HeldOut":
        """With more images. An image that is given again has its last label.

        Each class keeps those with the smallest digests, so the order in which images come has no effect.
        """
        pairs = [*zip(self.images.numpy(), self.labels.tolist(), strict=True), *zip(images, labels, strict=True)]
        by_digest = {pixel_digest(image.tobytes()): (image, label) for image, label in pairs}
        by_class = defaultdict[int, list[np.ndarray]](list)
        for digest in sorted(by_digest):
            image, label = by_digest[digest]
            by_class[label].append(image)
        most = max(1, MAX_KEPT // max(1, len(by_class)))
        kept = [(image, label) for label in sorted(by_class) for image in by_class[label][:most]]
        if not kept:
            return self
        stacked = torch.from_numpy(np.stack([image for image, _ in kept]))
        return replace(self, images=stacked, labels=torch.tensor([label for _, label in kept]))

    def without_class(self, number: int) -> "HeldOut":
        """Without the images of a class; the numbers of the classes after it decrease by one."""
        others = self.labels != number
        labels = self.labels[others]
        return replace(self, images=self.images[others], labels=labels - (labels > number).long())

    def content(self) -> dict[str, Any]:
        """For a checkpoint; `read_held_out` is the inverse."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def read_held_out(content: Mapping[str, Any], spec: StreamSpec) -> HeldOut:
    """From the content of a checkpoint. Raises ValueError if it does not match the model."""
    held_out = HeldOut(**content)
    images, labels = held_out.images, held_out.labels
    right_images = images.dtype == torch.uint8 and (len(images) == 0 or images.shape[1:] == spec.image_shape)
    right_labels = labels.dtype == torch.int64 and labels.shape == images.shape[:1]
    right_spared = all(isinstance(digest, str) for digest in held_out.spared)
    if (
        not right_images
        or not right_labels
        or not right_spared
        or not ((labels >= 0) & (labels < spec.num_classes)).all()
    ):
        raise ValueError("held_out: its images or labels do not match the model")
    return held_out


def pixel_digest(pixels: bytes) -> bytes:
    """Identifies an image by its decoded pixels, whatever its file is called and whatever else is in it."""
    return blake2b(pixels, digest_size=16).digest()


def is_held_out(digest: bytes, every: int) -> bool:
    """Whether an image is held out. By its pixels only, so that it is the same in every session; 0: none is."""
    return every > 0 and int.from_bytes(digest) % every == 0
