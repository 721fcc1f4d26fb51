"""Batched image operations on the device: normalisation, resizing, random views and random crops.

Every operation takes a whole batch, draws random numbers from the given generator and never reads a tensor on the host,
so that it can be captured in a CUDA graph.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet import kernels
from dualnet.options import check_at_least, check_fields, check_range

Normalisation = Literal["imagenet", "half"]
# Of the images of a supervised update; `augmented_input` describes each.
Augment = Literal["none", "views", "crop", "resized_crop", "random_crop"]
STATISTICS: dict[Normalisation, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
GREY = (0.299, 0.587, 0.114)  # luma of ITU-R BT.601, as in torchvision and kornia


@dataclass(frozen=True)
class ViewConfig:
    """The distribution of random views. Defaults: the numbers of the authors' code; comments: those of Barlow Twins."""

    # kornia: jitter and blur of kornia 0.5, as in the authors' code. Brightness is added, contrast multiplies colours,
    # saturation and hue are those of HSV, each step clips, their order is random, and only rows are blurred.
    library: Literal["own", "kornia"] = "own"  # whose jitter and blur; the authors: kornia
    crop_area: tuple[float, float] = (0.4307, 0.4307)  # share of the area; (84/128)^2; Barlow Twins: 0.08, 1
    crop_ratio: tuple[float, float] = (1.0, 1.0)  # width / height of the crop; Barlow Twins: 3/4, 4/3
    flip_probability: float = 0.5
    jitter_probability: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1  # share of the hue circle
    grey_probability: float = 0.2
    blur_probability: tuple[float, float] = (1.0, 0.1)  # of the first and of the second view
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # 3x3 Gaussian; with kornia not a range, but of columns and of rows
    normalisation: Normalisation = "half"

    def __post_init__(self) -> None:
        for option, most in {"crop_area": 1, "crop_ratio": math.inf, "blur_sigma": math.inf}.items():
            check_range(self, option, most)
        probabilities = ("flip_probability", "jitter_probability", "grey_probability", "blur_probability")
        check_at_least(self, 0, *probabilities, "brightness", "contrast", "saturation", "hue", most=1)
        check_fields(self)


# For supervised updates: normalised as in evaluation, and cropped as in Barlow Twins. With crops of a constant size, as
# in the slow learner's views, objects appear 1.5 times as large as in evaluation, and ER-Aug loses 4 points
# (results/notes/paper-rows.md).
SUPERVISED_VIEW = ViewConfig(normalisation="imagenet", crop_area=(0.08, 1.0), crop_ratio=(3 / 4, 4 / 3))
SUPERVISED_CROP = ViewConfig(normalisation="imagenet", flip_probability=0.0)
RESIZED_CROP = replace(SUPERVISED_VIEW, jitter_probability=0.0, grey_probability=0.0, blur_probability=(0.0, 0.0))
RANDOM_CROP = replace(RESIZED_CROP, flip_probability=0.0)
CROP_AREA = (0.4, 1.0)  # range of the area of a resized or random crop, as a share of the image


@cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Constants on a device, copied there once, because a copy from the host cannot be captured in a CUDA graph."""
    return torch.tensor(values, device=device)


def channel_statistics(statistics: Normalisation, images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, float [C, 1, 1]; for grey images their averages."""
    mean, std = STATISTICS[statistics]
    if images.shape[1] == 1:
        mean, std = (sum(mean) / 3,), (sum(std) / 3,)
    return constant(mean, images.device).view(-1, 1, 1), constant(std, images.device).view(-1, 1, 1)


def normalise(images: Tensor, statistics: Normalisation) -> Tensor:
    """Images in [0, 1] standardised by the statistics of each channel; grey images by the average of the statistics."""
    mean, std = channel_statistics(statistics, images)
    return (images - mean).div_(std)


def network_input(images: Tensor, size: tuple[int, int], statistics: Normalisation = "imagenet") -> Tensor:
    """The input of a network without augmentation, float [B, C, *size], from images, uint8 [B, C, H, W]."""
    pixels = images.float() / 255
    if pixels.shape[-2:] != size:
        pixels = F.interpolate(pixels, size, mode="bilinear", antialias=True, align_corners=False)
    return normalise(pixels, statistics)


def augmented_input(
    images: Tensor,
    size: tuple[int, int],
    augment: Augment,
    generator: torch.Generator,
    crop_area: tuple[float, float] = CROP_AREA,
    normalisation: Normalisation = "imagenet",
) -> Tensor:
    """The input of a network in a supervised update, float [B, C, *size], from images, uint8 [B, C, H, W].

    - `none`: the same as `network_input`; no random numbers are drawn.
    - `views`: a random view, blurred with the mean blur probability of the two views of `two_views`.
    - `crop`: a random crop of the constant size of the slow learner's views, resized.
    - `resized_crop`: a random crop of `crop_area` and aspect ratio 3/4 to 4/3, resized, flipped with probability 0.5.
    - `random_crop`: the same, never flipped.
    """
    if augment == "none":
        return network_input(images, size, normalisation)
    with torch.autocast(images.device.type, enabled=False):
        if augment == "crop":
            draws = torch.rand(len(images), 5, device=images.device, generator=generator)
            pixels = crop_and_flip(images.float().div_(255), size, SUPERVISED_CROP, draws)
            return normalise(pixels, normalisation)
        crop = RANDOM_CROP if augment == "random_crop" else RESIZED_CROP
        config = SUPERVISED_VIEW if augment == "views" else replace(crop, crop_area=crop_area)
        config = replace(config, normalisation=normalisation)
        return random_views(images, size, config, sum(config.blur_probability) / 2, generator)


def two_views(
    images: Tensor, size: tuple[int, int], config: ViewConfig, generator: torch.Generator, parts: int = 1
) -> tuple[Tensor, Tensor]:
    """Two random views, float32 [B, 3, *size] each, of images, uint8 [B, 3, H, W], of `parts` equal batches."""
    with torch.autocast(images.device.type, enabled=False):  # bfloat16 would round colours by up to 3/255
        probability = constant(config.blur_probability, images.device).repeat_interleave(len(images))
        view_a, view_b = random_views(images, size, config, probability, generator, 2, parts).chunk(2)
    return view_a, view_b


def random_views(
    images: Tensor,
    size: tuple[int, int],
    config: ViewConfig,
    blur_probability: Tensor | float,
    generator: torch.Generator,
    copies: int = 1,
    parts: int = 1,
) -> Tensor:
    """`copies` random views of each image, [copies * B, C, *size]. blur_probability: a number, or one for each view.

    With kornia the order of the steps is drawn for each copy of each of the `parts` equal batches of images.
    """
    draws = torch.rand(copies * len(images), 12, device=images.device, generator=generator)
    blurred = draws[:, 10] < blur_probability
    if config.library == "own" and kernels.available(images) and images.shape[1] == 3:
        from dualnet.kernels.views import fused_views

        return fused_views(images, size, draws, blurred, settings(config, images.device), colour_basis(images.device))
    pixels = crop_and_flip(images.repeat(copies, 1, 1, 1).float().div_(255), size, config, draws[:, :5])
    if config.library == "kornia":
        keys = torch.rand(copies * parts, 4, device=images.device, generator=generator)
        order = keys.argsort(dim=1).repeat_interleave(len(images) // parts, dim=0)
        pixels = kornia_jitter(pixels, config, draws[:, 5:12], order)
        pixels = kornia_blur(pixels, config.blur_sigma, blurred)
        return normalise(pixels, config.normalisation)
    if config.jitter_probability > 0 or config.grey_probability > 0:
        pixels = jitter_colour(pixels, config, draws[:, 5:10])
    if isinstance(blur_probability, Tensor) or blur_probability > 0:
        pixels = blur(pixels, config.blur_sigma, blurred, draws[:, 11])
    return normalise(pixels.clamp_(0, 1), config.normalisation)


def settings(config: ViewConfig, device: torch.device) -> Tensor:
    """The numbers of the configuration in the order that `fused_views` expects, float [22]."""
    mean, std = STATISTICS[config.normalisation]
    ratio = tuple(math.log(value) for value in config.crop_ratio)
    crop = (*config.crop_area, *ratio, config.flip_probability)
    jitter = (config.jitter_probability, config.brightness, config.contrast, config.saturation, config.hue)
    return constant((*crop, *jitter, config.grey_probability, *config.blur_sigma, *GREY, *mean, *std), device)


def between(low: float, high: float, draw: Tensor) -> Tensor:
    return low + (high - low) * draw


def crop_and_flip(pixels: Tensor, size: tuple[int, int], config: ViewConfig, draws: Tensor) -> Tensor:
    """A random crop of each image, flipped at random and resized to `size` by bilinear sampling. draws: [B, 5]."""
    area = between(*config.crop_area, draws[:, 0])
    low, high = config.crop_ratio
    ratio = torch.exp(between(math.log(low), math.log(high), draws[:, 1]))
    width = (area * ratio).sqrt().clamp(max=1)
    height = (area / ratio).sqrt().clamp(max=1)
    mirror = torch.where(draws[:, 4] < config.flip_probability, -width, width)
    # Positions of the columns and rows of the view in the image, from -1 to 1. Without rotation or shear they are
    # independent: this takes a third of the time of F.affine_grid, and autocast does not round it.
    columns, rows = (constant(pixel_centres(num), pixels.device) for num in (size[1], size[0]))
    x = torch.addcmul(((1 - width) * (2 * draws[:, 2] - 1)).unsqueeze(1), mirror.unsqueeze(1), columns)
    y = torch.addcmul(((1 - height) * (2 * draws[:, 3] - 1)).unsqueeze(1), height.unsqueeze(1), rows)
    grid = torch.empty(len(pixels), *size, 2, device=pixels.device)
    grid[..., 0] = x.unsqueeze(1)
    grid[..., 1] = y.unsqueeze(2)
    return F.grid_sample(pixels, grid, mode="bilinear", padding_mode="border", align_corners=False)


@cache
def pixel_centres(num: int) -> tuple[float, ...]:
    """The centres of `num` pixels that divide the interval from -1 to 1."""
    return tuple((2 * index + 1) / num - 1 for index in range(num))


def jitter_colour(pixels: Tensor, config: ViewConfig, draws: Tensor) -> Tensor:
    """Brightness, contrast, saturation, hue and greyscale as one affine map of the colours per image. draws: [B, 5].

    This is possible because their order is fixed and nothing is clipped in between. With P the projection onto grey,
    saturation s is sI + (1-s)P and a hue rotation by the angle t is P + cos(t)(I-P) + sin(t)C with CP = PC = 0, so
    their product is P + s cos(t)(I-P) + s sin(t)C. Greyscale is s = 0.
    """
    on = (draws[:, 0] < config.jitter_probability).float()
    factor = 1 + on * config.brightness * (2 * draws[:, 1] - 1)
    contrast = 1 + on * config.contrast * (2 * draws[:, 2] - 1)
    # One draw is used for both greyscale and saturation: given that it is above the threshold, it is uniform.
    colourful = draws[:, 3] >= config.grey_probability
    rest = (draws[:, 3] - config.grey_probability) / max(1 - config.grey_probability, 1e-9)
    saturation = colourful * (1 + on * config.saturation * (2 * rest - 1))
    angle = on * 2 * math.pi * config.hue * (2 * draws[:, 4] - 1)
    weights = torch.stack([torch.ones_like(angle), saturation * angle.cos(), saturation * angle.sin()], dim=1)
    matrix = (weights @ colour_basis(pixels.device)).view(-1, 3, 3) * (factor * contrast).view(-1, 1, 1)
    mean_grey = pixels.mean(dim=(2, 3)) @ constant(GREY, pixels.device)
    offset = ((1 - contrast) * factor * mean_grey).view(-1, 1, 1)
    flat = pixels.flatten(2)
    return torch.baddbmm(offset.expand(-1, 3, flat.shape[2]), matrix, flat).view_as(pixels)


@cache
def colour_basis(device: torch.device) -> Tensor:
    """P, I - P and C of `jitter_colour`, flattened: float [3, 9]."""
    grey = torch.tensor(GREY, dtype=torch.float64)
    projection = torch.ones(3, 1, dtype=torch.float64) @ grey.view(1, 3)
    # The generator of rotations of the chroma plane in YIQ, the colour space of NTSC.
    to_yiq = torch.tensor([GREY, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)], dtype=torch.float64)
    turn = torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64)
    chroma = torch.eye(3, dtype=torch.float64) - projection
    rotation = torch.linalg.inv(to_yiq) @ turn @ to_yiq
    return torch.stack([projection, chroma, rotation]).flatten(1).float().to(device)


def blur(pixels: Tensor, sigma: tuple[float, float], chosen: Tensor, draw: Tensor) -> Tensor:
    """A 3x3 Gaussian blur of the chosen images, each with a random sigma; the others are unchanged."""
    side = torch.exp(-0.5 / between(*sigma, draw) ** 2) * chosen
    taps = torch.stack([side, torch.ones_like(side), side], dim=1)
    taps = taps / taps.sum(dim=1, keepdim=True)
    filters = (taps[:, :, None] * taps[:, None, :]).repeat_interleave(pixels.shape[1], dim=0).unsqueeze(1)
    padded = F.pad(pixels, (1, 1, 1, 1), mode="reflect")
    planes = padded.flatten(0, 1).unsqueeze(0)
    return F.conv2d(planes, filters, groups=len(filters)).view_as(pixels)


def kornia_jitter(pixels: Tensor, config: ViewConfig, draws: Tensor, order: Tensor) -> Tensor:
    """Brightness (0), contrast (1), saturation (2) and hue (3) one after the other, then greyscale, as in kornia 0.5.

    draws: [B, 7], of which the columns 0 to 4 and 6 are used; order: int64 [B, 4], the step of each image at each time.
    """
    on = (draws[:, 0] < config.jitter_probability).float()
    strength = (config.brightness, config.contrast, config.saturation, config.hue)
    change = [on * most * (2 * draws[:, 1 + step] - 1) for step, most in enumerate(strength)]
    for now in order.T:
        added, contrast, saturation, hue = (
            torch.where(now == step, amount, 0).view(-1, 1, 1, 1) for step, amount in enumerate(change)
        )
        pixels = (pixels * (1 + contrast) + added).clamp(0, 1)
        pixels = change_hsv(pixels, 1 + saturation, 6 * hue)
    grey = (pixels * constant(GREY, pixels.device).view(3, 1, 1)).sum(dim=1, keepdim=True)
    return torch.where((draws[:, 6] < config.grey_probability).view(-1, 1, 1, 1), grey, pixels)


def change_hsv(pixels: Tensor, factor: Tensor, turn: Tensor) -> Tensor:
    """Colours in [0, 1] with their saturation in HSV times `factor`, at most 1, and their hue moved by `turn` sixths of
    the circle."""
    red, green, blue = pixels.split(1, dim=1)
    value, least = pixels.amax(dim=1, keepdim=True), pixels.amin(dim=1, keepdim=True)
    spread = value - least
    nonzero = spread.clamp(min=1e-8)
    of_green_or_blue = torch.where(value == green, (blue - red) / nonzero + 2, (red - green) / nonzero + 4)
    hue = torch.where(value == red, (green - blue) / nonzero, of_green_or_blue) + turn
    chroma = value * (spread / value.clamp(min=1e-8) * factor).clamp(max=1)
    at = (hue + constant((5.0, 3.0, 1.0), pixels.device).view(3, 1, 1)).remainder(6)
    return value - chroma * torch.minimum(at, 4 - at).clamp(0, 1)


def kornia_blur(pixels: Tensor, sigma: tuple[float, float], chosen: Tensor) -> Tensor:
    """A 3x3 Gaussian blur of the chosen images with one sigma for columns and one for rows, as in kornia 0.5."""
    sides = [math.exp(-0.5 / each**2) for each in sigma]
    down, right = ((side / (1 + 2 * side), 1 / (1 + 2 * side), side / (1 + 2 * side)) for side in sides)
    taps = constant(tuple(a * b for a in down for b in right), pixels.device).view(1, 1, 3, 3)
    padded = F.pad(pixels, (1, 1, 1, 1), mode="reflect").flatten(0, 1).unsqueeze(1)
    out = F.conv2d(padded, taps).view_as(pixels)
    return torch.where(chosen.view(-1, 1, 1, 1), out, pixels)
