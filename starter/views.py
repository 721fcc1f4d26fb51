"""Random views of photos and drawn characters, normalised as in supervised learning.

They are as diverse as the images of users: colour and grey, dark on light and light on dark, large and small.
"""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from dualnet.image_ops import STATISTICS, ViewConfig, constant, normalise, two_views

PHOTOS = ViewConfig(
    crop_area=(0.15, 1.0),
    crop_ratio=(3 / 4, 4 / 3),
    grey_probability=0.2,
    blur_probability=(0.5, 0.1),
    normalisation="imagenet",
)
INVERTED = 0.15  # share of all views
REDUCED = (2, 3, 4)  # reductions of the resolution, each of a quarter of the first views
# Largest transformations of characters in both directions; characters are neither flipped nor cropped.
TURN, SHEAR, SCALE, SHIFT = 0.3, 0.3, 0.35, 0.12  # radians, factor, natural logarithm, share of half the side
WHITE_ON_BLACK = 0.6  # share of characters; the others have two random colours


def pairs(photos: Tensor, glyphs: Tensor, size: tuple[int, int], generator: Generator) -> Tensor:
    """Float [2B, 3, *size]: the first views of all photos and glyphs, uint8 [., 3, H, W], then the second views."""
    first, second = two_views(photos, size, PHOTOS, generator)
    drawn = [glyph_views(glyphs, size, generator) for _ in range(2)]
    first = with_fewer_pixels(torch.cat([first, drawn[0]]))
    return with_inverted(torch.cat([first, second, drawn[1]]), generator)


def glyph_views(glyphs: Tensor, size: tuple[int, int], generator: Generator) -> Tensor:
    """Random views of glyphs: rotated, sheared, scaled and shifted, in random colours."""

    def draw(*shape: int) -> Tensor:
        return torch.rand(len(glyphs), *shape, device=glyphs.device, generator=generator)

    turn, shear = ((2 * draw() - 1) * most for most in (TURN, SHEAR))
    scale, shift = torch.exp((2 * draw(2) - 1) * SCALE), (2 * draw(2) - 1) * SHIFT
    cos, sin = turn.cos(), turn.sin()
    x = torch.stack([cos * scale[:, 0], (shear * cos - sin) * scale[:, 1], shift[:, 0]], dim=1)
    y = torch.stack([sin * scale[:, 0], (shear * sin + cos) * scale[:, 1], shift[:, 1]], dim=1)
    with torch.autocast(glyphs.device.type, enabled=False):
        grid = F.affine_grid(torch.stack([x, y], dim=1), [len(glyphs), 1, *size], align_corners=False)
        ink = F.grid_sample(glyphs[:, :1].float() / 255, grid, align_corners=False)
    plain = (draw(1, 1, 1) < WHITE_ON_BLACK).float()
    paper = draw(3, 1, 1) * (1 - plain)
    pen = torch.maximum(draw(3, 1, 1), plain)
    return normalise(paper + (pen - paper) * ink, "imagenet")


def with_fewer_pixels(views: Tensor) -> Tensor:
    """Some views with a lower resolution, as of small images that were enlarged."""
    views = views.clone()
    for row, times in enumerate(REDUCED):
        small = F.avg_pool2d(views[row::4], times)
        views[row::4] = F.interpolate(small, views.shape[2:], mode="bilinear")
    return views


def with_inverted(views: Tensor, generator: Generator) -> Tensor:
    """Some views as negatives."""
    mean, std = (constant(values, views.device).view(-1, 1, 1) for values in STATISTICS["imagenet"])
    chosen = torch.rand(len(views), 1, 1, 1, device=views.device, generator=generator) < INVERTED
    return torch.where(chosen, (1 - 2 * mean) / std - views, views)
