"""BatchNorm, residual sum and ReLU in two Triton kernels each way or in one, for channels-last tensors on CUDA.

The same numbers as `BatchNorm` makes eagerly, up to the order of sums; native kernels are 5 forward and 5 backward
(docs/performance.md). A small map goes through one kernel each way: two would mostly wait for their start.

A result is given twice, to a block's convolution and to its residual sum: so both gradients come to the first kernel
backward, which adds them while it reads them, and autograd needs no kernel for it.
"""

# A kernel is compiled by Triton, not run as Python: its launch options mean nothing to pyright.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
from torch import Tensor

from dualnet.kernels.norm_kernels import (
    backward_sums,
    forward_sums,
    normalise,
    normalise_backward,
    normalise_small,
    normalise_small_backward,
)

if TYPE_CHECKING:
    from dualnet.nets.norm import BatchNorm

CHANNELS_AT_A_TIME = 32
SMALL_ROWS = 512  # of a part, at most: more of them are read faster by many programs
SMALL_CHANNELS = 8


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
