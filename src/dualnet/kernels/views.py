"""Random views of images in two Triton kernels, for CUDA; the eager code in `image_ops` needs about 90.

The first kernel crops, flips and resizes, and sums the grey values of each view. The second blurs before it maps the
colours; the order does not matter, since both are linear and the blur's weights sum to one. The kernels compute the
parameters of a view from its random numbers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS_AT_A_TIME = 512
WARPS = 4
NUM_DRAWS = tl.constexpr(12)


@triton.jit
def between(settings, which, draw):
    """A random number between two consecutive settings."""
    low, high = tl.load(settings + which), tl.load(settings + which + 1)
    return low + (high - low) * draw


@triton.jit
def line(centre, extent, at, out_side, side):
    """The position of a row or column in the image: the pixels before and after it, and the fraction in between."""
    place = centre + extent * ((2 * at + 1).to(tl.float32) / out_side - 1)
    place = tl.minimum(tl.maximum(((place + 1) * side - 1) / 2, 0.0), side - 1.0)
    before = tl.floor(place).to(tl.int32)
    return before, tl.minimum(before + 1, side - 1), place - before.to(tl.float32)


@triton.jit
def crop_kernel(
    images, draws, settings, views, greys, num_images, height, width, out_height, out_width,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """views[view, channel, pixel] in [0, 1]; greys[view, block]: the sum over the block's pixels."""
    view, block = tl.program_id(0), tl.program_id(1)
    draw = draws + view * NUM_DRAWS
    area = between(settings, 0, tl.load(draw))
    ratio = tl.exp(between(settings, 2, tl.load(draw + 1)))
    wide = tl.minimum(tl.sqrt(area * ratio), 1.0)
    high = tl.minimum(tl.sqrt(area / ratio), 1.0)
    x_centre = (1 - wide) * (2 * tl.load(draw + 2) - 1)
    y_centre = (1 - high) * (2 * tl.load(draw + 3) - 1)
    x_extent = tl.where(tl.load(draw + 4) < tl.load(settings + 4), -wide, wide)
    image = images + (view % num_images).to(tl.int64) * 3 * height * width
    out_pixels = out_height * out_width
    view_start = views + view.to(tl.int64) * 3 * out_pixels
    grey = tl.zeros([BLOCK], tl.float32)
    for chunk in range(CHUNKS):
        pixel = (block * CHUNKS + chunk) * BLOCK + tl.arange(0, BLOCK)
        inside = pixel < out_pixels
        top, bottom, down = line(y_centre, high, pixel // out_width, out_height, height)
        left, right, along = line(x_centre, x_extent, pixel % out_width, out_width, width)
        for channel in tl.static_range(3):
            plane = image + channel * height * width
            a = tl.load(plane + top * width + left, mask=inside, other=0).to(tl.float32)
            b = tl.load(plane + top * width + right, mask=inside, other=0).to(tl.float32)
            c = tl.load(plane + bottom * width + left, mask=inside, other=0).to(tl.float32)
            d = tl.load(plane + bottom * width + right, mask=inside, other=0).to(tl.float32)
            upper, lower = a + (b - a) * along, c + (d - c) * along
            value = (upper + (lower - upper) * down) / 255
            tl.store(view_start + channel * out_pixels + pixel, value, mask=inside)
            grey += tl.where(inside, value * tl.load(settings + 13 + channel), 0.0)
    tl.store(greys + view * tl.num_programs(1) + block, tl.sum(grey, axis=0))


@triton.jit
def reflected(at, side):
    """Reflection at the border: -1 becomes 1, and side becomes side - 2."""
    at = tl.where(at < 0, -at, at)
    return tl.where(at >= side, 2 * side - 2 - at, at)


@triton.jit
def blurred(plane, row, column, out_height, out_width, side_tap, middle_tap, inside):
    total = tl.zeros_like(row).to(tl.float32)
    for down in tl.static_range(3):
        for right in tl.static_range(3):
            at = reflected(row + down - 1, out_height) * out_width + reflected(column + right - 1, out_width)
            tap = (middle_tap if down == 1 else side_tap) * (middle_tap if right == 1 else side_tap)
            total += tap * tl.load(plane + at, mask=inside, other=0.0)
    return total


@triton.jit
def colour_kernel(
    views, greys, draws, blur, settings, basis, out, out_height, out_width, num_greys,
    BLOCK: tl.constexpr, GREYS: tl.constexpr,
):  # fmt: skip
    """out[view, pixel, channel], normalised."""
    view, block = tl.program_id(0), tl.program_id(1)
    draw = draws + view * NUM_DRAWS
    out_pixels = out_height * out_width
    part = tl.arange(0, GREYS)
    mean_grey = tl.sum(tl.load(greys + view * num_greys + part, mask=part < num_greys, other=0.0), axis=0) / out_pixels
    on = tl.where(tl.load(draw + 5) < tl.load(settings + 5), 1.0, 0.0)
    factor = 1 + on * tl.load(settings + 6) * (2 * tl.load(draw + 6) - 1)
    contrast = 1 + on * tl.load(settings + 7) * (2 * tl.load(draw + 7) - 1)
    grey_probability = tl.load(settings + 10)
    colour_draw = tl.load(draw + 8)
    rest = (colour_draw - grey_probability) / tl.maximum(1 - grey_probability, 1e-9)
    saturation = 1 + on * tl.load(settings + 8) * (2 * rest - 1)
    saturation = tl.where(colour_draw >= grey_probability, saturation, 0.0)
    angle = on * 6.283185307179586 * tl.load(settings + 9) * (2 * tl.load(draw + 9) - 1)
    across, turned = saturation * tl.cos(angle), saturation * tl.sin(angle)
    offset = (1 - contrast) * factor * mean_grey
    sigma = between(settings, 11, tl.load(draw + 11))
    side = tl.where(tl.load(blur + view) != 0, tl.exp(-0.5 / (sigma * sigma)), 0.0)
    middle_tap = 1 / (1 + 2 * side)
    side_tap = side * middle_tap
    pixel = block * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < out_pixels
    row, column = pixel // out_width, pixel % out_width
    plane = views + view.to(tl.int64) * 3 * out_pixels
    red = blurred(plane, row, column, out_height, out_width, side_tap, middle_tap, inside)
    green = blurred(plane + out_pixels, row, column, out_height, out_width, side_tap, middle_tap, inside)
    blue = blurred(plane + 2 * out_pixels, row, column, out_height, out_width, side_tap, middle_tap, inside)
    at = out + (view.to(tl.int64) * out_pixels + pixel) * 3
    for channel in tl.static_range(3):
        of_red = mapped(basis, 3 * channel, across, turned) * factor * contrast
        of_green = mapped(basis, 3 * channel + 1, across, turned) * factor * contrast
        of_blue = mapped(basis, 3 * channel + 2, across, turned) * factor * contrast
        value = of_red * red + of_green * green + of_blue * blue + offset
        value = tl.minimum(tl.maximum(value, 0.0), 1.0)
        mean, std = tl.load(settings + 16 + channel), tl.load(settings + 19 + channel)
        tl.store(at + channel, (value - mean) / std, mask=inside)


@triton.jit
def mapped(basis, entry, across, turned):
    """An entry of the colour map, a combination of the three in `image_ops.colour_basis`."""
    return tl.load(basis + entry) + across * tl.load(basis + 9 + entry) + turned * tl.load(basis + 18 + entry)


def fused_views(
    images: Tensor, size: tuple[int, int], draws: Tensor, blur: Tensor, settings: Tensor, basis: Tensor
) -> Tensor:
    """Views of stored images uint8 [B, 3, H, W]: float32 [V, 3, *size], channels-last, V a multiple of B.

    `draws` are uniform, float [V, 12]; `blur`, bool [V], tells which views are blurred; `settings`, float [22], is
    `image_ops.settings`.
    """
    num_images, _, height, width = images.shape
    num_views, pixels = len(draws), size[0] * size[1]
    views = torch.empty(num_views, 3, pixels, device=images.device)
    out = torch.empty(num_views, 3, *size, device=images.device, memory_format=torch.channels_last)
    chunks = triton.cdiv(pixels, 4 * PIXELS_AT_A_TIME)
    num_greys = triton.cdiv(pixels, chunks * PIXELS_AT_A_TIME)
    greys = torch.empty(num_views, num_greys, device=images.device)
    crop_kernel[(num_views, num_greys)](
        images.contiguous(), draws, settings, views, greys, num_images, height, width, *size,
        BLOCK=PIXELS_AT_A_TIME, CHUNKS=chunks, num_warps=WARPS,
    )  # fmt: skip
    colour_kernel[(num_views, triton.cdiv(pixels, PIXELS_AT_A_TIME))](
        views, greys, draws, blur.view(torch.uint8), settings, basis, out, *size, num_greys,
        BLOCK=PIXELS_AT_A_TIME, GREYS=triton.next_power_of_2(num_greys), num_warps=WARPS,
    )  # fmt: skip
    return out
