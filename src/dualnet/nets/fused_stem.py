"""The first block of a network, conv 3x3 on images, BatchNorm, ReLU and max-pool, in Triton, for CUDA under autocast.

Images have three channels, too few for cuDNN's kernels: forward this takes 17 us where cuDNN took 79 (H200).
"""

# A kernel is compiled by Triton, not run as Python: its loops, indices and launch options mean nothing to pyright.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dualnet.nets.fused_norm import like
from dualnet.nets.fused_pool import Geometry, pool_forward, pool_gradients

if TYPE_CHECKING:
    from dualnet.nets.norm import BatchNorm, Pool

TAPS = tl.constexpr(27)  # of a 3x3 convolution of three channels
PADDED_TAPS = tl.constexpr(32)  # products of matrices come in powers of two; the 28th is the bias
PIXELS_AT_A_TIME = 128
WARPS = 4
PROGRAMS = 528  # that sum up the gradient of the weights


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


@triton.jit(do_not_specialize=["num_pixels", "chunk", "height", "width"])
def stem_weight_grads(
    images, dx, partial, step_image, step_channel, step_row, step_column, num_pixels, channels, chunk, height, width,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """partial[program, tap, channel]: the gradient of the convolution's weights from a chunk of the pixels."""
    program = tl.program_id(0)
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    real = col < channels
    last = tl.minimum((program + 1) * chunk, num_pixels)
    total = tl.zeros([PADDED_TAPS, BC], tl.float32)
    for first in range(program * chunk, last, BM):
        pixel = first + tl.arange(0, BM)
        inside = pixel < last
        image, h, v = pixel // (height * width), pixel // width % height, pixel % width
        at = pixel[:, None].to(tl.int64) * channels + col[None, :]
        grad = tl.load(dx + at, mask=inside[:, None] & real[None, :], other=0.0)
        patch = patches(images, image, h, v, inside, step_image, step_channel, step_row, step_column, height, width)
        total += tl.dot(tl.trans(patch.to(grad.dtype)), grad, input_precision="ieee")
    tap = tl.arange(0, PADDED_TAPS)
    out = partial + program * PADDED_TAPS * channels
    tl.store(out + tap[:, None] * channels + col[None, :], total, mask=real[None, :])


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
        columns = columns_for(channels)
        grid = (triton.cdiv(num * height * width, PIXELS_AT_A_TIME), triton.cdiv(channels, columns))
        stem_conv[grid](
            images, kernel, kernel if shift is None else shift, x, *images.stride(),
            num * height * width, channels, height, width,
            HAS_BIAS=shift is not None, BM=PIXELS_AT_A_TIME, BC=columns, num_warps=WARPS,
        )  # fmt: skip
        ctx.geometry, ctx.has_shift = Geometry(x, pool, parts), shift is not None
        y, chosen, mean, rstd = pool_forward(x, weight, bias, norm, ctx.geometry)
        ctx.save_for_backward(images, x, chosen, weight, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        images, x, chosen, weight, mean, rstd = ctx.saved_tensors
        dy = like(grads[0], chosen, x.dtype)
        dx, dweight, dbias = pool_gradients(x, dy, chosen, weight, mean, rstd, ctx.geometry)
        taps = weight_grads(images, dx)
        dkernel = taps[: TAPS.value].T.to(x.dtype).reshape(-1, 3, 3, 3).permute(0, 3, 1, 2)
        dshift = taps[TAPS.value] if ctx.has_shift else None
        return None, dkernel, dshift, dweight, dbias, None, None, None


def weight_grads(images: Tensor, dx: Tensor) -> Tensor:
    """The gradient of the weights, and in the row behind them of the bias: float32 [PADDED_TAPS, channels]."""
    num, channels, height, width = dx.shape
    num_pixels, columns = num * height * width, columns_for(channels)
    chunk = triton.cdiv(triton.cdiv(num_pixels, PROGRAMS), PIXELS_AT_A_TIME) * PIXELS_AT_A_TIME
    programs = triton.cdiv(num_pixels, chunk)
    partial = torch.empty(programs, PADDED_TAPS.value, channels, device=dx.device)
    stem_weight_grads[(programs, triton.cdiv(channels, columns))](
        images, dx, partial, *images.stride(), num_pixels, channels, chunk, height, width,
        BM=PIXELS_AT_A_TIME, BC=columns, num_warps=WARPS, num_stages=2,
    )  # fmt: skip
    return partial.sum(dim=0)


def columns_for(channels: int) -> int:
    return 64 if channels > 32 else 32


def fused_stem(images: Tensor, kernel: Tensor, shift: Tensor | None, norm: BatchNorm, pool: Pool, parts: int) -> Tensor:
    """`images` float [B, 3, H, W] of any layout, without a gradient; the result has the type of `kernel`."""
    return FusedStem.apply(images, kernel, shift, norm.weight, norm.bias, norm, pool, parts)  # pyright: ignore[reportReturnType]
