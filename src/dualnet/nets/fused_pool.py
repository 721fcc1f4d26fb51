"""BatchNorm, ReLU and max-pool in one go, in Triton, for channels-last tensors on CUDA.

What lies before the pool is the largest tensor of the network (the stem's: 58 MB for 64 images of 84 px). Fused, its
normalised copy is never written, forward or backward; only the pooled map and one byte per pixel of it are.
"""

# A kernel is compiled by Triton, not run as Python: its loops, indices and launch options mean nothing to pyright.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dualnet.nets.fused_norm import (
    CHANNELS_AT_A_TIME,
    ROWS_AT_A_TIME,
    WARPS,
    Plan,
    added_up,
    forward_sums,
    like,
    move_running,
    statistics,
    store_sums,
    store_weight_grads,
)

if TYPE_CHECKING:
    from dualnet.nets.norm import BatchNorm, Pool


@triton.jit(do_not_specialize=["rows", "out_rows", "splits", "chunk", "height", "width", "out_height", "out_width"])
def normalise_and_pool(
    x, y, chosen, weight, bias, running_mean, running_var, mean, rstd, sums,
    rows, out_rows, channels, splits, chunk, height, width, out_height, out_width, momentum, eps,
    PARTS: tl.constexpr, SIZE: tl.constexpr, PADDING: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """chosen: which pixel of its window, counted row by row, is the pooled one."""
    part, block = tl.program_id(0), tl.program_id(1)
    col = tl.program_id(2) * BC + tl.arange(0, BC)
    real = col < channels
    start, out_start = part.to(tl.int64) * rows * channels, part.to(tl.int64) * out_rows * channels
    centre, var = statistics(x, sums, part, splits, rows, channels, col, real, BC)
    scale = 1.0 / tl.sqrt(var + eps)
    w = tl.load(weight + col, mask=real, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=real, other=0.0).to(tl.float32)
    if block == 0:
        tl.store(mean + part * channels + col, centre, mask=real)
        tl.store(rstd + part * channels + col, scale, mask=real)
        if part == 0:
            move_running(
                x, sums, running_mean, running_var, part, splits, rows, channels, col, real, momentum, PARTS, BC
            )
    last = tl.minimum((block + 1) * chunk, out_rows)
    for row_0 in range(block * chunk, last, BM):
        row = row_0 + tl.arange(0, BM)
        inside = (row < last)[:, None] & real[None, :]
        image, i, j = row // (out_height * out_width), row // out_width % out_height, row % out_width
        best = tl.full([BM, BC], float("-inf"), tl.float32)
        best_at = tl.zeros([BM, BC], tl.int32)
        for window in tl.static_range(SIZE * SIZE):
            h, v = 2 * i + window // SIZE - PADDING, 2 * j + window % SIZE - PADDING
            there = inside & ((h >= 0) & (h < height) & (v >= 0) & (v < width))[:, None]
            at = start + ((image * height + h) * width + v)[:, None].to(tl.int64) * channels + col[None, :]
            value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
            value = (value - centre[None, :]) * (scale * w)[None, :] + b[None, :]
            better = there & ((value > best) | (value != value))  # a NaN wins, as in max_pool2d
            best = tl.where(better, value, best)
            best_at = tl.where(better, window, best_at)
        at = out_start + row[:, None].to(tl.int64) * channels + col[None, :]
        tl.store(y + at, tl.where(best < 0, 0.0, best).to(y.dtype.element_ty), mask=inside)
        tl.store(chosen + at, best_at.to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize=["rows", "out_rows", "chunk", "height", "width", "out_height", "out_width"])
def pool_sums(
    x, y, dy, chosen, mean, rstd, sums, rows, out_rows, channels, chunk, height, width, out_height, out_width,
    SIZE: tl.constexpr, PADDING: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """sums of g and g * x_hat: only pooled pixels have a gradient, so only these are visited."""
    part, split = tl.program_id(0), tl.program_id(1)
    col = tl.program_id(2) * BC + tl.arange(0, BC)
    real = col < channels
    start, out_start = part.to(tl.int64) * rows * channels, part.to(tl.int64) * out_rows * channels
    last = tl.minimum((split + 1) * chunk, out_rows)
    centre = tl.load(mean + part * channels + col, mask=real, other=0.0)
    scale = tl.load(rstd + part * channels + col, mask=real, other=0.0)
    sum_1 = tl.zeros([BM, BC], tl.float32)
    sum_2 = tl.zeros([BM, BC], tl.float32)
    for row_0 in range(split * chunk, last, BM):
        row = row_0 + tl.arange(0, BM)
        inside = (row < last)[:, None] & real[None, :]
        out_at = out_start + row[:, None].to(tl.int64) * channels + col[None, :]
        g = tl.load(dy + out_at, mask=inside, other=0.0).to(tl.float32)
        g = tl.where(tl.load(y + out_at, mask=inside, other=0.0).to(tl.float32) > 0, g, 0.0)
        window = tl.load(chosen + out_at, mask=inside, other=0).to(tl.int32)
        image, i, j = row // (out_height * out_width), row // out_width % out_height, row % out_width
        h = (2 * i)[:, None] + window // SIZE - PADDING
        v = (2 * j)[:, None] + window % SIZE - PADDING
        at = start + ((image[:, None] * height + h) * width + v).to(tl.int64) * channels + col[None, :]
        used = inside & (g != 0)
        x_hat = (tl.load(x + at, mask=used, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
        sum_1 += g
        sum_2 += tl.where(used, g * x_hat, 0.0)
    store_sums(sums, part, split, channels, col, real, sum_1, sum_2)


@triton.jit(do_not_specialize=["rows", "out_rows", "splits", "chunk", "height", "width", "out_height", "out_width"])
def pool_backward(
    x, y, dy, chosen, dx, weight, dweight, dbias, mean, rstd, sums,
    rows, out_rows, channels, splits, chunk, height, width, out_height, out_width,
    PARTS: tl.constexpr, SIZE: tl.constexpr, PADDING: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    part, block = tl.program_id(0), tl.program_id(1)
    col = tl.program_id(2) * BC + tl.arange(0, BC)
    real = col < channels
    start, out_start = part.to(tl.int64) * rows * channels, part.to(tl.int64) * out_rows * channels
    sum_g, sum_gx = added_up(sums, part, splits, channels, col, real, BC)
    if (block == 0) & (part == 0):
        store_weight_grads(dweight, dbias, sums, part, splits, channels, col, real, PARTS, BC)
    centre = tl.load(mean + part * channels + col, mask=real, other=0.0)
    scale = tl.load(rstd + part * channels + col, mask=real, other=0.0)
    w = tl.load(weight + col, mask=real, other=0.0).to(tl.float32)
    last = tl.minimum((block + 1) * chunk, rows)
    for row_0 in range(block * chunk, last, BM):
        row = row_0 + tl.arange(0, BM)
        inside = (row < last)[:, None] & real[None, :]
        image, h, v = row // (height * width), row // width % height, row % width
        g = tl.zeros([BM, BC], tl.float32)
        # A pixel lies in one window per direction, or in two where windows of 3 overlap.
        for near in tl.static_range((SIZE - 1) * (SIZE - 1)):
            i = (h + PADDING) // 2 - near // (SIZE - 1)
            j = (v + PADDING) // 2 - near % (SIZE - 1)
            down, right = h + PADDING - 2 * i, v + PADDING - 2 * j
            there = (i >= 0) & (i < out_height) & (j >= 0) & (j < out_width) & (down < SIZE) & (right < SIZE)
            there = inside & there[:, None]
            at = ((image * out_height + i) * out_width + j)[:, None].to(tl.int64) * channels + col[None, :] + out_start
            here = tl.load(chosen + at, mask=there, other=255).to(tl.int32) == (down * SIZE + right)[:, None]
            positive = tl.load(y + at, mask=there & here, other=0.0).to(tl.float32) > 0
            g += tl.where(positive, tl.load(dy + at, mask=there & here, other=0.0).to(tl.float32), 0.0)
        at = start + row[:, None].to(tl.int64) * channels + col[None, :]
        x_hat = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
        grad = (g - sum_g[None, :] / rows - x_hat * sum_gx[None, :] / rows) * (scale * w)[None, :]
        tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=inside)


class FusedPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: BatchNorm, pool: Pool, parts: int):
        images, channels, height, width = x.shape
        ctx.parts, ctx.pool, ctx.channels = parts, pool, channels
        ctx.sides = (height, width, pool.out_side(height), pool.out_side(width))
        ctx.rows, ctx.out_rows = images * height * width // parts, images * ctx.sides[2] * ctx.sides[3] // parts
        shape = (images, channels, *ctx.sides[2:])
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        chosen = torch.empty_like(y, dtype=torch.uint8)
        mean, rstd = torch.empty(2, parts, channels, device=x.device).unbind()
        plan, out_plan = Plan(parts, ctx.rows, channels), Plan(parts, ctx.out_rows, channels)
        sums = plan.empty_sums(x.device)
        forward_sums[plan.grid](
            x, sums, ctx.rows, channels, plan.chunk, BM=ROWS_AT_A_TIME, BC=CHANNELS_AT_A_TIME, num_warps=WARPS
        )
        normalise_and_pool[out_plan.grid](
            x, y, chosen, weight, bias, norm.running_mean, norm.running_var, mean, rstd, sums,
            ctx.rows, ctx.out_rows, channels, plan.splits, out_plan.chunk, *ctx.sides, norm.momentum, norm.eps,
            PARTS=parts, SIZE=pool.size, PADDING=pool.padding,
            BM=ROWS_AT_A_TIME, BC=CHANNELS_AT_A_TIME, num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(x, y, chosen, weight, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        x, y, chosen, weight, mean, rstd = ctx.saved_tensors
        dy, dx = like(grads[0], y), torch.empty_like(x)
        plan, out_plan = Plan(ctx.parts, ctx.rows, ctx.channels), Plan(ctx.parts, ctx.out_rows, ctx.channels)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(weight)
        sums = out_plan.empty_sums(x.device)
        pool_sums[out_plan.grid](
            x, y, dy, chosen, mean, rstd, sums, ctx.rows, ctx.out_rows, ctx.channels, out_plan.chunk, *ctx.sides,
            SIZE=ctx.pool.size, PADDING=ctx.pool.padding, BM=ROWS_AT_A_TIME, BC=CHANNELS_AT_A_TIME, num_warps=WARPS,
        )  # fmt: skip
        pool_backward[plan.grid](
            x, y, dy, chosen, dx, weight, dweight, dbias, mean, rstd, sums,
            ctx.rows, ctx.out_rows, ctx.channels, out_plan.splits, plan.chunk, *ctx.sides,
            PARTS=ctx.parts, SIZE=ctx.pool.size, PADDING=ctx.pool.padding,
            BM=ROWS_AT_A_TIME, BC=CHANNELS_AT_A_TIME, num_warps=WARPS,
        )  # fmt: skip
        return dx, dweight, dbias, None, None, None


def fused_pool(x: Tensor, norm: BatchNorm, pool: Pool, parts: int) -> Tensor:
    """`x` must be channels-last: see `can_fuse`."""
    return FusedPool.apply(x, norm.weight, norm.bias, norm, pool, parts)  # pyright: ignore[reportReturnType]
