"""BatchNorm, residual sum and ReLU in two Triton kernels each way or in one, for channels-last tensors on CUDA.

The input is a matrix [parts, rows, channels]: a row is a pixel of an example. A part begins at a 64-bit offset; inside
of it 32 bits do, which halves the arithmetic of addresses. The first kernel sums over blocks of
rows; the second adds these sums up, each program for its own channels, and writes the result. The same numbers as
`BatchNorm` makes eagerly, up to the order of sums; native kernels are 5 forward and 5 backward (docs/performance.md).

A small map goes through one kernel each way, which keeps all rows of a few channels in its registers: two would mostly
wait for their start.

A result is given twice, to a block's convolution and to its residual sum: so both gradients come to the first kernel
backward, which adds them while it reads them, and autograd needs no kernel for it.
"""

# A kernel is compiled by Triton, not run as Python: its loops, indices and launch options mean nothing to pyright.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from dualnet.nets.norm import BatchNorm

CHANNELS_AT_A_TIME = 32
SMALL_ROWS = 512  # of a part, at most: more of them are read faster by many programs
SMALL_CHANNELS = 8
SPLITS_AT_A_TIME = tl.constexpr(32)


class Shape(NamedTuple):
    """Of a launch: rows in a step of a program's loop, its warps, and how many programs fill an H200.

    A loop of products of matrices is cut into stages, so that it loads for the next while it computes.
    """

    rows: int
    warps: int
    programs: int
    stages: int = 1


SUMMING = Shape(256, 16, 66)  # few and large: every program of the second kernel reads what all of these left
WRITING = Shape(64, 4, 528)  # with more, five learners side by side are slower: each takes its time to begin


@triton.jit(do_not_specialize=["rows", "chunk"])
def forward_sums(x, sums, rows, channels, chunk, BM: tl.constexpr, BC: tl.constexpr):
    """sums[part, split, 0 or 1, channel] of x - pivot and of its square.

    The pivot is the part's first pixel: the variance as a difference of two large numbers would lose its digits.
    """
    part, split = tl.program_id(0), tl.program_id(1)
    col = tl.program_id(2) * BC + tl.arange(0, BC)
    real = col < channels
    x += part.to(tl.int64) * rows * channels
    last = tl.minimum((split + 1) * chunk, rows)
    pivot = tl.load(x + col, mask=real, other=0.0).to(tl.float32)
    sum_1 = tl.zeros([BM, BC], tl.float32)
    sum_2 = tl.zeros([BM, BC], tl.float32)
    for row_0 in range(split * chunk, last, BM):
        row = row_0 + tl.arange(0, BM)
        inside = (row < last)[:, None] & real[None, :]
        at = row[:, None] * channels + col[None, :]
        value = tl.where(inside, tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - pivot[None, :], 0.0)
        sum_1 += value
        sum_2 += value * value
    store_sums(sums, part, split, channels, col, real, sum_1, sum_2)


@triton.jit
def store_sums(sums, part, split, channels, col, real, sum_1, sum_2):
    out = sums + ((part * tl.num_programs(1) + split) * 2) * channels + col
    tl.store(out, tl.sum(sum_1, axis=0), mask=real)
    tl.store(out + channels, tl.sum(sum_2, axis=0), mask=real)


@triton.jit
def masked_grad(dy, at, inside, x_hat, w, b, RELU: tl.constexpr):
    """The gradient behind the ReLU, without a residual: x alone tells what was cut off, and y is not read."""
    g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        g = tl.where(x_hat * w[None, :] + b[None, :] > 0, g, 0.0)
    return g


@triton.jit
def joined_grad(y, dy, dy_2, dresidual, at, inside, RELU: tl.constexpr, TWO: tl.constexpr):
    """The gradient of the residual sum, of one consumer or two: written once, as rounded, and not found again."""
    g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    if TWO:
        g += tl.load(dy_2 + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        g = tl.where(tl.load(y + at, mask=inside, other=0.0).to(tl.float32) > 0, g, 0.0)
    rounded = g.to(dresidual.dtype.element_ty)
    tl.store(dresidual + at, rounded, mask=inside)
    return rounded.to(tl.float32)


@triton.jit(do_not_specialize=["rows", "chunk"])
def backward_sums(
    x, y, dy, dy_2, dresidual, weight, bias, mean, rstd, sums, rows, channels, chunk,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, TWO: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """sums[part, split, 0 or 1, channel] of the gradient g and of g * x_hat."""
    part, split = tl.program_id(0), tl.program_id(1)
    col = tl.program_id(2) * BC + tl.arange(0, BC)
    real = col < channels
    start = part.to(tl.int64) * rows * channels
    x, y, dy, dy_2, dresidual = x + start, y + start, dy + start, dy_2 + start, dresidual + start
    last = tl.minimum((split + 1) * chunk, rows)
    centre = tl.load(mean + part * channels + col, mask=real, other=0.0)
    scale = tl.load(rstd + part * channels + col, mask=real, other=0.0)
    w = tl.load(weight + col, mask=real, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=real, other=0.0).to(tl.float32)
    sum_1 = tl.zeros([BM, BC], tl.float32)
    sum_2 = tl.zeros([BM, BC], tl.float32)
    for row_0 in range(split * chunk, last, BM):
        row = row_0 + tl.arange(0, BM)
        inside = (row < last)[:, None] & real[None, :]
        at = row[:, None] * channels + col[None, :]
        x_hat = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
        if RESIDUAL:
            g = joined_grad(y, dy, dy_2, dresidual, at, inside, RELU, TWO)
        else:
            g = masked_grad(dy, at, inside, x_hat, w, b, RELU)
        sum_1 += g
        sum_2 += g * x_hat
    store_sums(sums, part, split, channels, col, real, sum_1, sum_2)


@triton.jit
def added_up(sums, part, splits, channels, col, real, BC: tl.constexpr):
    """Both sums of a part over all splits, float [BC] each."""
    sum_1 = tl.zeros([SPLITS_AT_A_TIME, BC], tl.float32)
    sum_2 = tl.zeros([SPLITS_AT_A_TIME, BC], tl.float32)
    for first in range(0, splits, SPLITS_AT_A_TIME):
        split = first + tl.arange(0, SPLITS_AT_A_TIME)
        at = ((part * splits + split) * 2)[:, None] * channels + col[None, :]
        inside = (split < splits)[:, None] & real[None, :]
        sum_1 += tl.load(sums + at, mask=inside, other=0.0)
        sum_2 += tl.load(sums + at + channels, mask=inside, other=0.0)
    return tl.sum(sum_1, axis=0), tl.sum(sum_2, axis=0)


@triton.jit
def statistics(x, sums, part, splits, rows, channels, col, real, BC: tl.constexpr):
    sum_1, sum_2 = added_up(sums, part, splits, channels, col, real, BC)
    pivot = tl.load(x + part.to(tl.int64) * rows * channels + col, mask=real, other=0.0).to(tl.float32)
    shift = sum_1 / rows
    return pivot + shift, tl.maximum(sum_2 / rows - shift * shift, 0.0)


@triton.jit
def move_running(
    x, sums, running_mean, running_var, first, splits, rows, channels, col, real, momentum,
    PARTS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The running statistics move once per part, in order."""
    run_mean = tl.load(running_mean + col, mask=real, other=0.0)
    run_var = tl.load(running_var + col, mask=real, other=0.0)
    for part in tl.static_range(PARTS):
        mean, var = statistics(x, sums, first + part, splits, rows, channels, col, real, BC)
        run_mean = (1 - momentum) * run_mean + momentum * mean
        run_var = (1 - momentum) * run_var + momentum * var * (rows / (rows - 1.0))
    tl.store(running_mean + col, run_mean, mask=real)
    tl.store(running_var + col, run_var, mask=real)


@triton.jit
def centre_and_scale(
    x, running_mean, running_var, mean, rstd, sums, part, block, splits, rows, channels, col, real, momentum, eps,
    PARTS: tl.constexpr, GIVEN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Of a part, float [BC] each. The first programs note them for the way back and move the running statistics."""
    if GIVEN:
        centre = tl.load(running_mean + col, mask=real, other=0.0)
        scale = 1.0 / tl.sqrt(tl.load(running_var + col, mask=real, other=0.0) + eps)
    else:
        centre, var = statistics(x, sums, part, splits, rows, channels, col, real, BC)
        scale = 1.0 / tl.sqrt(var + eps)
        if block == 0:
            tl.store(mean + part * channels + col, centre, mask=real)
            tl.store(rstd + part * channels + col, scale, mask=real)
            if part == 0:
                move_running(
                    x, sums, running_mean, running_var, part, splits, rows, channels, col, real, momentum, PARTS, BC
                )
    return centre, scale


@triton.jit
def store_weight_grads(
    dweight, dbias, sums, first, splits, channels, col, real,
    PARTS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    total_g, total_gx = added_up(sums, first, splits, channels, col, real, BC)
    for part in tl.static_range(1, PARTS):
        part_g, part_gx = added_up(sums, first + part, splits, channels, col, real, BC)
        total_g += part_g
        total_gx += part_gx
    tl.store(dbias + col, total_g, mask=real)
    tl.store(dweight + col, total_gx, mask=real)


@triton.jit(do_not_specialize=["rows", "splits", "chunk"])
def normalise(
    x, residual, y, weight, bias, running_mean, running_var, mean, rstd, sums,
    rows, channels, splits, chunk, momentum, eps,
    PARTS: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, GIVEN: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """GIVEN: by the running statistics, and nothing is moved."""
    part, block = tl.program_id(0), tl.program_id(1)
    col = tl.program_id(2) * BC + tl.arange(0, BC)
    real = col < channels
    start = part.to(tl.int64) * rows * channels
    centre, scale = centre_and_scale(
        x, running_mean, running_var, mean, rstd, sums, part, block, splits, rows, channels, col, real, momentum, eps,
        PARTS, GIVEN, BC,
    )  # fmt: skip
    w = tl.load(weight + col, mask=real, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=real, other=0.0).to(tl.float32)
    x, residual, y = x + start, residual + start, y + start
    last = tl.minimum((block + 1) * chunk, rows)
    for row_0 in range(block * chunk, last, BM):
        row = row_0 + tl.arange(0, BM)
        inside = (row < last)[:, None] & real[None, :]
        at = row[:, None] * channels + col[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        value = (value - centre[None, :]) * (scale * w)[None, :] + b[None, :]
        if RESIDUAL:
            value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0, 0.0, value)  # not a maximum: that would swallow a NaN
        tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "splits", "chunk"])
def normalise_backward(
    x, dy, dx, weight, bias, dweight, dbias, mean, rstd, sums,
    rows, channels, splits, chunk,
    PARTS: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """With a residual dy is the gradient behind the ReLU already: RELU is then off."""
    part, block = tl.program_id(0), tl.program_id(1)
    col = tl.program_id(2) * BC + tl.arange(0, BC)
    real = col < channels
    start = part.to(tl.int64) * rows * channels
    sum_g, sum_gx = added_up(sums, part, splits, channels, col, real, BC)
    if (block == 0) & (part == 0):
        store_weight_grads(dweight, dbias, sums, part, splits, channels, col, real, PARTS, BC)
    centre = tl.load(mean + part * channels + col, mask=real, other=0.0)
    scale = tl.load(rstd + part * channels + col, mask=real, other=0.0)
    w = tl.load(weight + col, mask=real, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=real, other=0.0).to(tl.float32)
    x, dy, dx = x + start, dy + start, dx + start
    last = tl.minimum((block + 1) * chunk, rows)
    for row_0 in range(block * chunk, last, BM):
        row = row_0 + tl.arange(0, BM)
        inside = (row < last)[:, None] & real[None, :]
        at = row[:, None] * channels + col[None, :]
        x_hat = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
        g = masked_grad(dy, at, inside, x_hat, w, b, RELU)
        grad = (g - (sum_g / rows)[None, :] - x_hat * (sum_gx / rows)[None, :]) * (scale * w)[None, :]
        tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def normalise_small(
    x, residual, y, weight, bias, running_mean, running_var, mean, rstd, rows, channels, momentum, eps,
    PARTS: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """All rows of some channels at once, part by part: so the running statistics move in order."""
    row, col = tl.arange(0, BM), tl.program_id(0) * BC + tl.arange(0, BC)
    real = col < channels
    inside = (row < rows)[:, None] & real[None, :]
    at = row[:, None] * channels + col[None, :]
    w = tl.load(weight + col, mask=real, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=real, other=0.0).to(tl.float32)
    run_mean = tl.load(running_mean + col, mask=real, other=0.0)
    run_var = tl.load(running_var + col, mask=real, other=0.0)
    for part in range(PARTS):
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        centre = tl.sum(value, axis=0) / rows
        value = tl.where(inside, value - centre[None, :], 0.0)
        var = tl.sum(value * value, axis=0) / rows
        scale = 1.0 / tl.sqrt(var + eps)
        run_mean = (1 - momentum) * run_mean + momentum * centre
        run_var = (1 - momentum) * run_var + momentum * var * (rows / (rows - 1.0))
        tl.store(mean + part * channels + col, centre, mask=real)
        tl.store(rstd + part * channels + col, scale, mask=real)
        value = value * (scale * w)[None, :] + b[None, :]
        if RESIDUAL:
            value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0, 0.0, value)
        tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)
        at += rows * channels
    tl.store(running_mean + col, run_mean, mask=real)
    tl.store(running_var + col, run_var, mask=real)


@triton.jit(do_not_specialize=["rows"])
def normalise_small_backward(
    x, y, dy, dy_2, dresidual, dx, weight, bias, dweight, dbias, mean, rstd, rows, channels,
    PARTS: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, TWO: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    row, col = tl.arange(0, BM), tl.program_id(0) * BC + tl.arange(0, BC)
    real = col < channels
    inside = (row < rows)[:, None] & real[None, :]
    at = row[:, None] * channels + col[None, :]
    w = tl.load(weight + col, mask=real, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=real, other=0.0).to(tl.float32)
    total_g, total_gx = tl.zeros([BC], tl.float32), tl.zeros([BC], tl.float32)
    for part in range(PARTS):
        centre = tl.load(mean + part * channels + col, mask=real, other=0.0)
        scale = tl.load(rstd + part * channels + col, mask=real, other=0.0)
        x_hat = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
        if RESIDUAL:
            g = joined_grad(y, dy, dy_2, dresidual, at, inside, RELU, TWO)
        else:
            g = masked_grad(dy, at, inside, x_hat, w, b, RELU)
        sum_g, sum_gx = tl.sum(g, axis=0), tl.sum(g * x_hat, axis=0)
        total_g += sum_g
        total_gx += sum_gx
        grad = (g - (sum_g / rows)[None, :] - x_hat * (sum_gx / rows)[None, :]) * (scale * w)[None, :]
        tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=inside)
        at += rows * channels
    tl.store(dbias + col, total_g, mask=real)
    tl.store(dweight + col, total_gx, mask=real)


class FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, norm: BatchNorm, parts: int
    ):
        ctx.parts, ctx.relu, ctx.has_residual = parts, norm.relu, residual is not None
        ctx.channels, ctx.rows = x.shape[1], x.numel() // x.shape[1] // parts
        y = torch.empty_like(x)
        mean, rstd = torch.empty(2, parts, ctx.channels, device=x.device).unbind()
        added = x if residual is None else residual
        tensors = (x, added, y, weight, bias, norm.running_mean, norm.running_var, mean, rstd)
        flags = {"PARTS": parts, "RELU": norm.relu, "RESIDUAL": residual is not None}
        if ctx.rows <= SMALL_ROWS:
            grid, options = small_launch(ctx.rows, ctx.channels)
            normalise_small[grid](*tensors, ctx.rows, ctx.channels, norm.momentum, norm.eps, **flags, **options)
        else:
            summing, writing = (Plan(shape, parts, ctx.rows, ctx.channels) for shape in (SUMMING, WRITING))
            sums = summing.empty_sums(x.device)
            forward_sums[summing.grid](x, sums, ctx.rows, ctx.channels, summing.chunk, **summing.options)
            normalise[writing.grid](
                *tensors, sums, ctx.rows, ctx.channels, summing.splits, writing.chunk, norm.momentum, norm.eps,
                GIVEN=False, **flags, **writing.options,
            )  # fmt: skip
        # y is read only where a residual was added: else it need not be kept for this.
        ctx.save_for_backward(x, y if residual is not None else x, weight, bias, mean, rstd)
        ctx.set_materialize_grads(False)  # a result that nobody used has no gradient, rather than one of zeros
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None):
        x, y, weight, bias, mean, rstd = ctx.saved_tensors
        dy, *others = [like(grad, x) for grad in grads if grad is not None]
        assert ctx.has_residual or not others, "without a residual one gradient is read"
        dy_2 = others[0] if others else dy
        dx, g = torch.empty_like(x), torch.empty_like(x) if ctx.has_residual else dy
        dweight, dbias = torch.empty_like(weight), torch.empty_like(weight)
        flags = {"RELU": ctx.relu, "RESIDUAL": ctx.has_residual, "TWO": bool(others)}
        if ctx.rows <= SMALL_ROWS:
            grid, options = small_launch(ctx.rows, ctx.channels)
            normalise_small_backward[grid](
                x, y, dy, dy_2, g, dx, weight, bias, dweight, dbias, mean, rstd, ctx.rows, ctx.channels,
                PARTS=ctx.parts, **flags, **options,
            )  # fmt: skip
        else:
            summing, writing = (Plan(shape, ctx.parts, ctx.rows, ctx.channels) for shape in (SUMMING, WRITING))
            sums = summing.empty_sums(x.device)
            backward_sums[summing.grid](
                x, y, dy, dy_2, g, weight, bias, mean, rstd, sums, ctx.rows, ctx.channels, summing.chunk,
                **flags, **summing.options,
            )  # fmt: skip
            normalise_backward[writing.grid](
                x, g, dx, weight, bias, dweight, dbias, mean, rstd, sums,
                ctx.rows, ctx.channels, summing.splits, writing.chunk,
                PARTS=ctx.parts, RELU=ctx.relu and not ctx.has_residual, **writing.options,
            )  # fmt: skip
        return dx, dweight, dbias, g if ctx.has_residual else None, None, None


def small_launch(rows: int, channels: int) -> tuple[tuple[int], dict[str, int]]:
    """The grid of a small map's kernels, and their options: 16 values of x for a thread at most."""
    rows_held = triton.next_power_of_2(rows)
    options = {"BM": rows_held, "BC": SMALL_CHANNELS, "num_warps": max(1, rows_held // 64)}
    return (triton.cdiv(channels, SMALL_CHANNELS),), options


class Plan:
    """How a matrix is cut: each program takes `chunk` rows of one part and some channels."""

    def __init__(
        self, shape: Shape, parts: int, rows: int, channels: int, channels_at_a_time: int = CHANNELS_AT_A_TIME
    ) -> None:
        assert rows * channels < 2**31, "a part is too large for 32-bit offsets"
        columns = triton.cdiv(channels, channels_at_a_time)
        wanted = max(1, shape.programs // (parts * columns))
        self.chunk = triton.cdiv(triton.cdiv(rows, wanted), shape.rows) * shape.rows
        self.splits = triton.cdiv(rows, self.chunk)
        self.grid = (parts, self.splits, columns)
        self.options = {
            "BM": shape.rows,
            "BC": channels_at_a_time,
            "num_warps": shape.warps,
            "num_stages": shape.stages,
        }
        self.parts, self.channels = parts, channels

    def empty_sums(self, device: torch.device) -> Tensor:
        return torch.empty(self.parts, self.splits, 2, self.channels, device=device)


def like(tensor: Tensor, model: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor with the model's layout and its dtype or the one given, copied only if it must be."""
    dtype = dtype or model.dtype
    if tensor.dtype == dtype and tensor.stride() == model.stride():
        return tensor
    return torch.empty_like(model, dtype=dtype).copy_(tensor)


def fused_norm(x: Tensor, norm: BatchNorm, parts: int, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """The result twice in one memory; both may be used if there is a residual.

    `x` must be channels-last, or plain features: see `BatchNorm.can_fuse`.
    """
    if residual is not None:
        residual = like(residual, x)
    if not norm.training:
        y = by_running_statistics(x, norm, residual)
        return y, y
    if x.numel() // x.shape[1] <= parts:
        raise ValueError("BatchNorm needs more than one value per channel to learn from: give a larger batch")
    return FusedNorm.apply(x, norm.weight, norm.bias, residual, norm, parts)  # pyright: ignore[reportReturnType]


def by_running_statistics(x: Tensor, norm: BatchNorm, residual: Tensor | None) -> Tensor:
    """Without a gradient."""
    y, channels = torch.empty_like(x), x.shape[1]
    rows = x.numel() // channels
    plan = Plan(WRITING, 1, rows, channels)
    running = (norm.running_mean, norm.running_var)
    normalise[plan.grid](
        x, x if residual is None else residual, y, norm.weight, norm.bias, *running, *running, y,
        rows, channels, 1, plan.chunk, norm.momentum, norm.eps,
        PARTS=1, RELU=norm.relu, RESIDUAL=residual is not None, GIVEN=True, **plan.options,
    )  # fmt: skip
    return y
