"""BatchNorm, residual sum and ReLU in two Triton kernels per direction, for channels-last tensors on CUDA.

PyTorch needs 5 kernels forward and 5 backward (docs/performance.md). Small maps use one kernel per direction, because
launching a second one would take longer than its work.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from dualnet.kernels import Norm
from dualnet.kernels import norm_kernels as kernels
from dualnet.kernels.launch import SUMMING, WRITING, LaunchGrid, match_layout

SMALL_ROWS = 512  # most rows of a part of a small map; more are read faster by many programs
SMALL_CHANNELS = 8


class FusedNorm(torch.autograd.Function):
    """With a residual the result is returned twice, in the same memory, and the gradients of both are added here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, norm: Norm, parts: int):
        ctx.parts, ctx.relu, ctx.has_residual = parts, norm.relu, residual is not None
        ctx.channels, ctx.rows = x.shape[1], x.numel() // x.shape[1] // parts
        y = torch.empty_like(x)
        mean, rstd = torch.empty(2, parts, ctx.channels, device=x.device).unbind()
        added = x if residual is None else residual
        tensors = (x, added, y, weight, bias, norm.running_mean, norm.running_var, mean, rstd)
        flags = {"PARTS": parts, "RELU": norm.relu, "RESIDUAL": residual is not None}
        if ctx.rows <= SMALL_ROWS:
            grid, options = small_launch(ctx.rows, ctx.channels)
            kernels.normalise_small[grid](*tensors, ctx.rows, ctx.channels, norm.momentum, norm.eps, **flags, **options)
        else:
            summing, writing = (LaunchGrid(shape, parts, ctx.rows, ctx.channels) for shape in (SUMMING, WRITING))
            sums = summing.empty_sums(x.device)
            kernels.forward_sums[summing.grid](x, sums, ctx.rows, ctx.channels, summing.chunk, **summing.options)
            kernels.normalise[writing.grid](
                *tensors, sums, ctx.rows, ctx.channels, summing.splits, writing.chunk, norm.momentum, norm.eps,
                GIVEN=False, **flags, **writing.options,
            )  # fmt: skip
        # backward reads y only if a residual was added
        ctx.save_for_backward(x, x if residual is None else y, weight, bias, mean, rstd)
        ctx.set_materialize_grads(False)  # an unused result has no gradient instead of zeros
        return y if residual is None else (y, y.as_strided(y.shape, y.stride()))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None):
        x, y, weight, bias, mean, rstd = ctx.saved_tensors
        dy, *others = [match_layout(grad, x) for grad in grads if grad is not None]
        dy_2 = others[0] if others else dy
        dx, g = torch.empty_like(x), torch.empty_like(x) if ctx.has_residual else dy
        dweight, dbias = torch.empty_like(weight), torch.empty_like(weight)
        flags = {"RELU": ctx.relu, "RESIDUAL": ctx.has_residual, "TWO": bool(others)}
        if ctx.rows <= SMALL_ROWS:
            grid, options = small_launch(ctx.rows, ctx.channels)
            kernels.normalise_small_backward[grid](
                x, y, dy, dy_2, g, dx, weight, bias, dweight, dbias, mean, rstd, ctx.rows, ctx.channels,
                PARTS=ctx.parts, **flags, **options,
            )  # fmt: skip
        else:
            summing, writing = (LaunchGrid(shape, ctx.parts, ctx.rows, ctx.channels) for shape in (SUMMING, WRITING))
            sums = summing.empty_sums(x.device)
            kernels.backward_sums[summing.grid](
                x, y, dy, dy_2, g, weight, bias, mean, rstd, sums, ctx.rows, ctx.channels, summing.chunk,
                **flags, **summing.options,
            )  # fmt: skip
            kernels.normalise_backward[writing.grid](
                x, g, dx, weight, bias, dweight, dbias, mean, rstd, sums,
                ctx.rows, ctx.channels, summing.splits, writing.chunk,
                PARTS=ctx.parts, RELU=ctx.relu and not ctx.has_residual, **writing.options,
            )  # fmt: skip
        return dx, dweight, dbias, g if ctx.has_residual else None, None, None


def small_launch(rows: int, channels: int) -> tuple[tuple[int], dict[str, int]]:
    """The grid and options of the kernels for small maps: at most 16 values of x per thread."""
    rows_held = triton.next_power_of_2(rows)
    options = {"BM": rows_held, "BC": SMALL_CHANNELS, "num_warps": max(1, rows_held // 64)}
    return (triton.cdiv(channels, SMALL_CHANNELS),), options


def fused_norm(x: Tensor, norm: Norm, parts: int, residual: Tensor | None) -> Tensor:
    """`x` is channels-last, or contiguous features. With a residual the result has a `twin`: see `second_use`."""
    if residual is not None:
        residual = match_layout(residual, x)
    if not norm.training:
        return normalise_by_running_statistics(x, norm, residual)
    if x.numel() // x.shape[1] <= parts:
        raise ValueError("BatchNorm needs more than one value per channel in training: use a larger batch")
    results: Any = FusedNorm.apply(x, norm.weight, norm.bias, residual, norm, parts)
    if residual is None:
        return results
    # As an attribute, so that the networks read as if a map had one consumer; see `second_use`. The twin is the base of
    # the view and does not refer to it: the reverse would be a reference cycle.
    twin, y = results
    y.twin = twin
    return y


def normalise_by_running_statistics(x: Tensor, norm: Norm, residual: Tensor | None) -> Tensor:
    """In eval mode. There is no backward kernel."""
    y, channels = torch.empty_like(x), x.shape[1]
    rows = x.numel() // channels
    launch = LaunchGrid(WRITING, 1, rows, channels)
    running = (norm.running_mean, norm.running_var)
    kernels.normalise[launch.grid](
        x, x if residual is None else residual, y, norm.weight, norm.bias, *running, *running, y,
        rows, channels, 1, launch.chunk, norm.momentum, norm.eps,
        PARTS=1, RELU=norm.relu, RESIDUAL=residual is not None, GIVEN=True, **launch.options,
    )  # fmt: skip
    return y
