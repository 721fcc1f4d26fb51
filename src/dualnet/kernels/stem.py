"""The first block of a network, conv 3x3 on images, BatchNorm, ReLU and max-pool, in Triton, for CUDA under autocast.

Images have three channels, so the convolution's output x, the largest map of the network, is cheaper to make again than
to keep: it is never written. What BatchNorm and the gradients need of it are sums over its pixels, and x = W p is
linear in the patch p of 27 values. With the matrix G of the sums of p p^T over a part's n pixels, p ending in a 1:

    mean of x         = W sum(p) / n
    variance of x     = W (G / n - mean(p) mean(p)^T) W^T
    sum of p x_hat    = (G W^T - sum(p) mean) / std

and, with S the sum of g p^T over the pooled pixels, whose gradient behind the ReLU is g, the gradient of W is

    scale / std (S - sum(g) sum(p) / n - sum(g x_hat) sum(p x_hat) / n),    sum(g x_hat) = (W S - sum(g) mean) / std
"""

# A kernel is compiled by Triton, not run as Python: its loops, indices and launch options mean nothing to pyright.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dualnet.kernels.norm import Plan, Shape, like
from dualnet.kernels.pool import UNUSED, Geometry

if TYPE_CHECKING:
    from dualnet.nets.norm import BatchNorm, Pool

TAPS = tl.constexpr(27)  # of a 3x3 convolution of three channels
PADDED_TAPS = tl.constexpr(32)  # products of matrices come in powers of two; the 28th is a 1
CHANNELS = 64  # at a time
FEW_CHANNELS = 16  # where all there is to do is a product with a matrix of taps
LAST_BITS = tl.constexpr(15)  # of a number, which say which pixel of a window it is
PATCHING = Shape(128, 4, 1056)  # rows are pixels
POOLING = Shape(64, 4, 2112, stages=3)
SUMMING = Shape(64, 4, 1056)


@triton.jit(do_not_specialize=["rows", "chunk"])
def make_patches(
    images, patches, products, step_image, step_channel, step_row, step_column, rows, chunk,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SUMS: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """patches[pixel]: the 3 by 3 pixels around it, then 1, 0, 0...

    With SUMS, products[part, split]: a chunk's sum of p p^T.
    """
    part, split = tl.program_id(0), tl.program_id(1)
    last = tl.minimum((split + 1) * chunk, rows)
    tap = tl.arange(0, PADDED_TAPS)
    down, right, channel = tap // 9 - 1, tap // 3 % 3 - 1, tap % 3
    step = channel * step_channel + down * step_row + right * step_column
    total = tl.zeros([PADDED_TAPS, PADDED_TAPS], tl.float32)
    for first in range(split * chunk, last, BM):
        pixel = first + tl.arange(0, BM)
        inside = pixel < last
        pixel += part * rows
        h, v = pixel // WIDTH % HEIGHT, pixel % WIDTH
        at = (pixel // (HEIGHT * WIDTH)).to(tl.int64) * step_image + h * step_row + v * step_column
        there = inside[None, :] & (tap < TAPS)[:, None] & in_range(h, down, HEIGHT) & in_range(v, right, WIDTH)
        values = tl.load(images + at[None, :] + step[:, None], mask=there, other=0.0)
        values = tl.where((tap == TAPS)[:, None] & inside[None, :], 1.0, values).to(patches.dtype.element_ty)
        tl.store(patches + pixel[None, :] * PADDED_TAPS + tap[:, None], values, mask=inside[None, :])
        if SUMS:
            total += tl.dot(values, tl.trans(values), input_precision="ieee")
    if SUMS:
        out = products + (part * tl.num_programs(1) + split) * PADDED_TAPS * PADDED_TAPS
        tl.store(out + tap[:, None] * PADDED_TAPS + tap[None, :], total)


@triton.jit
def in_range(pixel, step, SIDE: tl.constexpr):
    there = pixel[None, :] + step[:, None]
    return (there >= 0) & (there < SIDE)


@triton.jit
def patches_in_windows(
    patches, row, window,
    SIZE: tl.constexpr, PADDING: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """Of one pixel of the windows of pooled pixels: a matrix [rows, PADDED_TAPS].

    Where a window looks beyond the image, the next pixel of it: that is in the window too, and a maximum does not mind.
    """
    image, i, j = row // (OUT_HEIGHT * OUT_WIDTH), row // OUT_WIDTH % OUT_HEIGHT, row % OUT_WIDTH
    h = tl.minimum(tl.maximum(2 * i + (window // SIZE - PADDING), 0), HEIGHT - 1)
    v = tl.minimum(tl.maximum(2 * j + (window % SIZE - PADDING), 0), WIDTH - 1)
    pixel = (image * HEIGHT + h) * WIDTH + v
    return tl.load(patches + pixel[:, None] * PADDED_TAPS + tl.arange(0, PADDED_TAPS)[None, :])


@triton.jit
def load_weights(kernel, col, real):
    """[PADDED_TAPS, channels], zero behind the taps."""
    tap = tl.arange(0, PADDED_TAPS)
    known = (tap < TAPS)[:, None] & real[None, :]
    return tl.load(kernel + col[None, :] * TAPS + tap[:, None], mask=known, other=0.0)


@triton.jit
def matrix(start):
    """A matrix [PADDED_TAPS, PADDED_TAPS]."""
    tap = tl.arange(0, PADDED_TAPS)
    return tl.load(start + tap[:, None] * PADDED_TAPS + tap[None, :])


@triton.jit(do_not_specialize=["rows"])
def stem_statistics(
    products, kernel, shift, running_mean, running_var, mean, rstd, rows, channels, momentum, eps,
    PARTS: tl.constexpr, HAS_SHIFT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Of the convolution's output without its `shift`, which a BatchNorm takes away again."""
    col = tl.program_id(0) * BC + tl.arange(0, BC)
    real = col < channels
    w = load_weights(kernel, col, real).to(tl.float32)
    run_mean = tl.load(running_mean + col, mask=real, other=0.0)
    run_var = tl.load(running_var + col, mask=real, other=0.0)
    shifted = tl.load(shift + col, mask=real, other=0.0).to(tl.float32) if HAS_SHIFT else 0.0
    tap = tl.arange(0, PADDED_TAPS)
    for part in tl.static_range(PARTS):
        start = products + part * PADDED_TAPS * PADDED_TAPS
        average = tl.load(start + tap * PADDED_TAPS + TAPS) / rows
        across = tl.load(start + TAPS * PADDED_TAPS + tap) / rows  # the same, along the other side of the matrix
        spread = matrix(start) / rows - average[:, None] * across[None, :]
        centre = tl.sum(w * average[:, None], axis=0)
        var = tl.maximum(tl.sum(w * tl.dot(spread, w, input_precision="ieee"), axis=0), 0.0)
        tl.store(mean + part * channels + col, centre, mask=real)
        tl.store(rstd + part * channels + col, 1.0 / tl.sqrt(var + eps), mask=real)
        run_mean = (1 - momentum) * run_mean + momentum * (centre + shifted)
        run_var = (1 - momentum) * run_var + momentum * var * (rows / (rows - 1.0))
    tl.store(running_mean + col, run_mean, mask=real)
    tl.store(running_var + col, run_var, mask=real)


@triton.jit(do_not_specialize=["out_rows", "chunk"])
def stem_pool(
    patches, kernel, weight, bias, mean, rstd, y, chosen, out_rows, channels, chunk,
    SIZE: tl.constexpr, PADDING: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The pooled map; chosen: which pixel of its window, counted row by row, is the pooled one, or UNUSED.

    The pixel is written into the last bits of its value, so that one maximum finds both; with kernels turned round
    where BatchNorm's weight is negative, the maximum of x gives that of what BatchNorm makes of it.
    """
    part, block = tl.program_id(0), tl.program_id(1)
    col = tl.program_id(2) * BC + tl.arange(0, BC)
    real = col < channels
    slope = tl.load(rstd + part * channels + col, mask=real, other=0.0) * tl.load(weight + col, mask=real, other=0.0)
    level = tl.load(bias + col, mask=real, other=0.0) - slope * tl.load(
        mean + part * channels + col, mask=real, other=0.0
    )
    kernels = load_weights(kernel, col, real)
    kernels = tl.where((slope < 0)[None, :], -kernels, kernels)
    slope = tl.abs(slope)
    start = part.to(tl.int64) * out_rows * channels
    y, chosen = y + start, chosen + start
    last = tl.minimum((block + 1) * chunk, out_rows)
    for first in range(block * chunk, last, BM):
        row = first + tl.arange(0, BM)
        shown = part * out_rows + tl.minimum(row, last - 1)
        best = tl.full([BM, BC], float("-inf"), tl.float32)
        for window in range(SIZE * SIZE):
            patch = patches_in_windows(patches, shown, window, SIZE, PADDING, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH)
            value = tl.dot(patch, kernels, input_precision="ieee").to(tl.int32, bitcast=True)
            value = ((value & ~LAST_BITS) | (LAST_BITS - window)).to(tl.float32, bitcast=True)
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
        window = LAST_BITS - (best.to(tl.int32, bitcast=True) & LAST_BITS)
        best = best * slope[None, :] + level[None, :]
        inside = (row < last)[:, None] & real[None, :]
        at = row[:, None] * channels + col[None, :]
        tl.store(y + at, tl.where(best < 0, 0.0, best).to(y.dtype.element_ty), mask=inside)
        tl.store(chosen + at, tl.where(best <= 0, UNUSED, window).to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize=["out_rows", "chunk"])
def gradient_products(
    patches, dy, chosen, products, out_rows, channels, chunk,
    SIZE: tl.constexpr, PADDING: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """products[part, split]: a chunk's sum of p g^T over the pooled pixels, p being the patch of the chosen one."""
    part, split = tl.program_id(0), tl.program_id(1)
    col = tl.program_id(2) * BC + tl.arange(0, BC)
    real = col < channels
    start = part.to(tl.int64) * out_rows * channels
    dy, chosen = dy + start, chosen + start
    last = tl.minimum((split + 1) * chunk, out_rows)
    total = tl.zeros([PADDED_TAPS, BC], tl.float32)
    for first in range(split * chunk, last, BM):
        row = first + tl.arange(0, BM)
        shown = part * out_rows + tl.minimum(row, last - 1)
        inside = (row < last)[:, None] & real[None, :]
        at = row[:, None] * channels + col[None, :]
        g = tl.load(dy + at, mask=inside, other=0.0)
        choice = tl.load(chosen + at, mask=inside, other=UNUSED)
        for window in range(SIZE * SIZE):
            patch = patches_in_windows(patches, shown, window, SIZE, PADDING, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH)
            chosen_g = tl.where(choice == window, g, 0.0).to(g.dtype)
            total += tl.dot(tl.trans(patch), chosen_g, input_precision="ieee")
    tap = tl.arange(0, PADDED_TAPS)
    out = products + (part * tl.num_programs(1) + split) * PADDED_TAPS * channels
    tl.store(out + tap[:, None] * channels + col[None, :], total, mask=real[None, :])


@triton.jit(do_not_specialize=["rows"])
def stem_gradients(
    patch_sums, grad_sums, kernel, weight, mean, rstd, dkernel, dshift, dweight, dbias, rows, channels,
    PARTS: tl.constexpr, HAS_SHIFT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Of all weights, from the sums of p p^T and of p g^T (the formulas above)."""
    col = tl.program_id(0) * BC + tl.arange(0, BC)
    real = col < channels
    tap = tl.arange(0, PADDED_TAPS)
    w = load_weights(kernel, col, real).to(tl.float32)
    of_kernel = tl.zeros([PADDED_TAPS, BC], tl.float32)
    of_weight = tl.zeros([BC], tl.float32)
    of_bias = tl.zeros([BC], tl.float32)
    for part in tl.static_range(PARTS):
        centre = tl.load(mean + part * channels + col, mask=real, other=0.0)
        scale = tl.load(rstd + part * channels + col, mask=real, other=0.0)
        start = patch_sums + part * PADDED_TAPS * PADDED_TAPS
        sum_p = tl.load(start + tap * PADDED_TAPS + TAPS)
        p_x_hat = (tl.dot(matrix(start), w, input_precision="ieee") - sum_p[:, None] * centre[None, :]) * scale[None, :]
        start = grad_sums + part * PADDED_TAPS * channels
        p_g = tl.load(start + tap[:, None] * channels + col[None, :], mask=real[None, :], other=0.0)
        sum_g = tl.load(start + TAPS * channels + col, mask=real, other=0.0)
        g_x_hat = (tl.sum(w * p_g, axis=0) - sum_g * centre) * scale
        grad = p_g - sum_p[:, None] * (sum_g / rows)[None, :] - p_x_hat * (g_x_hat / rows)[None, :]
        of_kernel += grad * scale[None, :]
        of_weight += g_x_hat
        of_bias += sum_g
    of_kernel *= tl.load(weight + col, mask=real, other=0.0).to(tl.float32)[None, :]
    at = col[None, :] * TAPS + tap[:, None]
    tl.store(dkernel + at, of_kernel.to(dkernel.dtype.element_ty), mask=(tap < TAPS)[:, None] & real[None, :])
    if HAS_SHIFT:
        tl.store(dshift + col, tl.zeros([BC], tl.float32), mask=real)  # a BatchNorm takes every shift away again
    tl.store(dweight + col, of_weight, mask=real)
    tl.store(dbias + col, of_bias, mask=real)


class FusedStem(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, kernel: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor,
        norm: BatchNorm, pool: Pool, parts: int,
    ):  # fmt: skip
        """`kernel` and `shift` are the convolution's weight and bias."""
        kernel = kernel.contiguous(memory_format=torch.channels_last)  # [channel, row, column, image channel] in memory
        channels, has_shift = kernel.shape[0], shift is not None
        geometry = Geometry((len(images), channels, *images.shape[2:]), pool, parts)
        patches, patch_sums = patches_of(images, kernel.dtype, geometry)
        mean, rstd = torch.empty(2, parts, channels, device=images.device).unbind()
        stem_statistics[(columns_of(channels),)](
            patch_sums, kernel, shift if has_shift else kernel, norm.running_mean, norm.running_var, mean, rstd,
            geometry.rows, channels, norm.momentum, norm.eps, PARTS=parts, HAS_SHIFT=has_shift, BC=FEW_CHANNELS,
        )  # fmt: skip
        y, chosen = pooled_conv(patches, kernel, weight, bias, mean, rstd, geometry)
        ctx.geometry, ctx.has_shift = geometry, has_shift
        ctx.save_for_backward(patches, patch_sums, kernel, weight, mean, rstd, chosen)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        patches, patch_sums, kernel, weight, mean, rstd, chosen = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        dy = like(grads[0], chosen, kernel.dtype)  # the pooled map's layout is that of `chosen`
        plan = Plan(SUMMING, geometry.parts, geometry.out_rows, geometry.channels, CHANNELS)
        shape = (geometry.parts, plan.splits, PADDED_TAPS.value, geometry.channels)
        products = torch.empty(shape, device=dy.device)
        gradient_products[plan.grid](
            patches, dy, chosen, products, geometry.out_rows, geometry.channels, plan.chunk,
            **sides(geometry), **plan.options,
        )  # fmt: skip
        dkernel = torch.empty_like(kernel)
        dweight, dbias, dshift = torch.empty(3, geometry.channels, device=dy.device).unbind()
        stem_gradients[(columns_of(geometry.channels),)](
            patch_sums, products.sum(dim=1), kernel, weight, mean, rstd, dkernel, dshift, dweight, dbias,
            geometry.rows, geometry.channels, PARTS=geometry.parts, HAS_SHIFT=ctx.has_shift, BC=FEW_CHANNELS,
        )  # fmt: skip
        return None, dkernel, dshift if ctx.has_shift else None, dweight, dbias, None, None, None


def pooled_conv(
    patches: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, geometry: Geometry
) -> tuple[Tensor, Tensor]:
    """The block's output, and which pixels were chosen."""
    layout = torch.channels_last
    y = torch.empty(geometry.out_shape, dtype=kernel.dtype, device=patches.device, memory_format=layout)
    chosen = torch.empty_like(y, dtype=torch.uint8)
    plan = Plan(POOLING, geometry.parts, geometry.out_rows, geometry.channels, CHANNELS)
    stem_pool[plan.grid](
        patches, kernel, weight, bias, mean, rstd, y, chosen,
        geometry.out_rows, geometry.channels, plan.chunk, **sides(geometry), **plan.options,
    )  # fmt: skip
    return y, chosen


def sides(geometry: Geometry) -> dict[str, int]:
    """As constants: a kernel divides by them all the time, and a network's images are of one size."""
    names = ("HEIGHT", "WIDTH", "OUT_HEIGHT", "OUT_WIDTH")
    return dict(zip(names, geometry.sides, strict=True)) | geometry.window


def columns_of(channels: int) -> int:
    return triton.cdiv(channels, FEW_CHANNELS)


def patches_of(images: Tensor, dtype: torch.dtype, geometry: Geometry, with_sums: bool = True) -> tuple[Tensor, Tensor]:
    """[pixel, PADDED_TAPS], and of each part the sum of p p^T, float32 [parts, PADDED_TAPS, PADDED_TAPS], if asked."""
    taps, num_pixels = PADDED_TAPS.value, geometry.parts * geometry.rows
    assert num_pixels * taps < 2**31, "too many images for 32-bit offsets"
    patches = torch.empty(num_pixels, taps, dtype=dtype, device=images.device)
    plan = Plan(PATCHING, geometry.parts, geometry.rows, 1)
    products = torch.empty(geometry.parts, plan.splits if with_sums else 1, taps, taps, device=images.device)
    make_patches[plan.grid[:2]](
        images, patches, products, *images.stride(), geometry.rows, plan.chunk,
        HEIGHT=geometry.sides[0], WIDTH=geometry.sides[1], SUMS=with_sums,
        BM=PATCHING.rows, num_warps=PATCHING.warps, num_stages=PATCHING.stages,
    )  # fmt: skip
    return patches, products.sum(dim=1) if with_sums else products


def fused_stem(images: Tensor, kernel: Tensor, shift: Tensor | None, norm: BatchNorm, pool: Pool, parts: int) -> Tensor:
    """`images` float [B, 3, H, W] of any layout, without a gradient; the result has the type of `kernel`."""
    if not norm.training:
        return stem_by_running_statistics(images, kernel, shift, norm, pool)
    return FusedStem.apply(images, kernel, shift, norm.weight, norm.bias, norm, pool, parts)  # pyright: ignore[reportReturnType]


def stem_by_running_statistics(
    images: Tensor, kernel: Tensor, shift: Tensor | None, norm: BatchNorm, pool: Pool
) -> Tensor:
    """Without a gradient."""
    kernel = kernel.contiguous(memory_format=torch.channels_last)
    geometry = Geometry((len(images), kernel.shape[0], *images.shape[2:]), pool, 1)
    patches, _ = patches_of(images, kernel.dtype, geometry, with_sums=False)
    mean, rstd = norm.running_mean, (norm.running_var + norm.eps).rsqrt()
    mean = mean if shift is None else mean - shift
    y, _ = pooled_conv(patches, kernel, norm.weight, norm.bias, mean, rstd, geometry)
    return y
