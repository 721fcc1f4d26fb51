"""The first block of a network, conv 3x3 on images, BatchNorm, ReLU and max-pool, in Triton, for CUDA under autocast.

Images have three channels, too few for cuDNN's kernels, and need no gradient. So the gradient of the convolution's
output, the largest of the network, is never written: the kernel that works it out sums up the weights' gradient.
"""

# A kernel is compiled by Triton, not run as Python: its loops, indices and launch options mean nothing to pyright.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dualnet.nets.fused_norm import Shape, added_up, like, store_weight_grads
from dualnet.nets.fused_pool import Geometry, block_gradients, gradient_sums, pool_forward

if TYPE_CHECKING:
    from dualnet.nets.norm import BatchNorm, Pool

TAPS = tl.constexpr(27)  # of a 3x3 convolution of three channels
PADDED_TAPS = tl.constexpr(32)  # products of matrices come in powers of two; the 28th is the bias
PIXELS_AT_A_TIME = 128
CONV_WARPS = 4
BACKWARD = Shape(64, 4, 528)


@triton.jit
def patches(images, image, h, v, inside, step_image, step_channel, step_row, step_column, height, width):
    """The 3 by 3 pixels around each (h, v), as the rows of a matrix [pixels, PADDED_TAPS] that ends in 1, 0, 0..."""
    tap = tl.arange(0, PADDED_TAPS)
    row, column, channel = h[:, None] + (tap // 9)[None, :] - 1, v[:, None] + (tap // 3 % 3)[None, :] - 1, tap % 3
    there = inside[:, None] & (tap < TAPS)[None, :] & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    at = image[:, None].to(tl.int64) * step_image + (channel * step_channel)[None, :]
    values = tl.load(images + at + row * step_row + column * step_column, mask=there, other=0.0).to(tl.float32)
    return tl.where((tap == TAPS)[None, :] & inside[:, None], 1.0, values)


@triton.jit(do_not_specialize=["num_pixels", "height", "width"])
def stem_conv(
    images, weight, bias, x, step_image, step_channel, step_row, step_column, num_pixels, channels, height, width,
    HAS_BIAS: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """x[pixel, channel], in the type of the weights [channel, tap]."""
    pixel = tl.program_id(0) * BM + tl.arange(0, BM)
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    inside, real = pixel < num_pixels, col < channels
    image, h, v = pixel // (height * width), pixel // width % height, pixel % width
    patch = patches(images, image, h, v, inside, step_image, step_channel, step_row, step_column, height, width)
    tap = tl.arange(0, PADDED_TAPS)
    known = (tap < TAPS)[:, None] & real[None, :]
    w = tl.load(weight + col[None, :] * TAPS + tap[:, None], mask=known, other=0.0)
    out = tl.dot(patch.to(w.dtype), w, input_precision="ieee")
    if HAS_BIAS:
        out += tl.load(bias + col, mask=real, other=0.0).to(tl.float32)[None, :]
    at = pixel[:, None].to(tl.int64) * channels + col[None, :]
    tl.store(x + at, out.to(x.dtype.element_ty), mask=inside[:, None] & real[None, :])


@triton.jit(do_not_specialize=["rows", "out_rows", "splits", "chunk", "height", "width", "out_height", "out_width"])
def stem_backward(
    images, x, dy, chosen, weight, dweight, dbias, mean, rstd, sums, partial,
    step_image, step_channel, step_row, step_column,
    rows, out_rows, channels, splits, chunk, height, width, out_height, out_width,
    PARTS: tl.constexpr, SIZE: tl.constexpr, PADDING: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """partial[part, block, tap, channel]: the convolution's gradient from a program's blocks of 2 by 2 pixels."""
    part, block = tl.program_id(0), tl.program_id(1)
    col = tl.program_id(2) * BC + tl.arange(0, BC)
    real = col < channels
    start, out_start = part.to(tl.int64) * rows * channels, part.to(tl.int64) * out_rows * channels
    num_images = rows // (height * width)
    first_image = part * num_images
    sum_g, sum_gx = added_up(sums, part, splits, channels, col, real, BC)
    partial += (part * tl.num_programs(1) + block) * PADDED_TAPS * channels
    if (block == 0) & (part == 0):
        store_weight_grads(dweight, dbias, sums, part, splits, channels, col, real, PARTS, BC)
    centre = tl.load(mean + part * channels + col, mask=real, other=0.0)
    scale = tl.load(rstd + part * channels + col, mask=real, other=0.0)
    w = tl.load(weight + col, mask=real, other=0.0).to(tl.float32)
    x, dy, chosen = x + start, dy + out_start, chosen + out_start
    down, right = (height + 1) // 2, (width + 1) // 2  # blocks
    last = tl.minimum((block + 1) * chunk, num_images * down * right)
    total = tl.zeros([PADDED_TAPS, BC], tl.float32)
    for row_0 in range(block * chunk, last, BM):
        row = row_0 + tl.arange(0, BM)
        image, i, j = row // (down * right), row // right % down, row % right
        g_00, g_01, g_10, g_11 = block_gradients(
            dy, chosen, image, i, j, row < last, channels, out_height, out_width, col, real, SIZE, PADDING, BM, BC
        )
        for pixel in tl.static_range(4):
            g = g_00 if pixel == 0 else (g_01 if pixel == 1 else (g_10 if pixel == 2 else g_11))
            h, v = 2 * i + pixel // 2, 2 * j + pixel % 2
            inside = (row < last) & (h < height) & (v < width)
            there = inside[:, None] & real[None, :]
            at = ((image * height + h) * width + v)[:, None] * channels + col[None, :]
            value = tl.load(x + at, mask=there, other=0.0)
            x_hat = (value.to(tl.float32) - centre[None, :]) * scale[None, :]
            grad = (g - sum_g[None, :] / rows - x_hat * sum_gx[None, :] / rows) * (scale * w)[None, :]
            grad = tl.where(there, grad, 0.0).to(value.dtype)
            patch = patches(
                images, first_image + image, h, v, inside,
                step_image, step_channel, step_row, step_column, height, width,
            )  # fmt: skip
            total += tl.dot(tl.trans(patch.to(value.dtype)), grad, input_precision="ieee")
    tap = tl.arange(0, PADDED_TAPS)
    tl.store(partial + tap[:, None] * channels + col[None, :], total, mask=real[None, :])


class FusedStem(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, kernel: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor,
        norm: BatchNorm, pool: Pool, parts: int,
    ):  # fmt: skip
        """`kernel` and `shift` are the convolution's weight and bias."""
        num, _, height, width = images.shape
        channels = kernel.shape[0]
        kernel = kernel.contiguous(memory_format=torch.channels_last)  # [channel, row, column, image channel] in memory
        layout = torch.channels_last
        x = torch.empty(num, channels, height, width, dtype=kernel.dtype, device=images.device, memory_format=layout)
        columns = 64 if channels > 32 else 32
        grid = (triton.cdiv(num * height * width, PIXELS_AT_A_TIME), triton.cdiv(channels, columns))
        stem_conv[grid](
            images, kernel, kernel if shift is None else shift, x, *images.stride(),
            num * height * width, channels, height, width,
            HAS_BIAS=shift is not None, BM=PIXELS_AT_A_TIME, BC=columns, num_warps=CONV_WARPS,
        )  # fmt: skip
        ctx.geometry, ctx.has_shift = Geometry(x, pool, parts), shift is not None
        y, chosen, mean, rstd = pool_forward(x, weight, bias, norm, ctx.geometry)
        ctx.save_for_backward(images, x, chosen, weight, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        images, x, chosen, weight, mean, rstd = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        dy = like(grads[0], chosen, x.dtype)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(weight)
        sums = gradient_sums(x, dy, chosen, mean, rstd, geometry)
        plan = geometry.plan(BACKWARD, geometry.blocks)
        partial = torch.empty(geometry.parts * plan.splits, PADDED_TAPS.value, geometry.channels, device=x.device)
        stem_backward[plan.grid](
            images, x, dy, chosen, weight, dweight, dbias, mean, rstd, sums, partial, *images.stride(),
            geometry.rows, geometry.out_rows, geometry.channels, sums.shape[1], plan.chunk, *geometry.sides,
            PARTS=geometry.parts, **geometry.window, **plan.options, num_stages=1,
        )  # fmt: skip
        taps = partial.sum(dim=0)
        dkernel = taps[: TAPS.value].T.to(x.dtype).reshape(geometry.channels, 3, 3, 3).permute(0, 3, 1, 2)
        dshift = taps[TAPS.value] if ctx.has_shift else None
        return None, dkernel, dshift, dweight, dbias, None, None, None


def fused_stem(images: Tensor, kernel: Tensor, shift: Tensor | None, norm: BatchNorm, pool: Pool, parts: int) -> Tensor:
    """`images` float [B, 3, H, W] of any layout, without a gradient; the result has the type of `kernel`."""
    return FusedStem.apply(images, kernel, shift, norm.weight, norm.bias, norm, pool, parts)  # pyright: ignore[reportReturnType]
