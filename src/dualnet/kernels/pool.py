"""BatchNorm, ReLU and max-pool of stride 2 in Triton, for channels-last tensors on CUDA.

The map before the pool is four times as large as the one after it. Fused, its normalised copy is never written, neither
forward nor backward: only the pooled map and one byte per pooled pixel are.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from dualnet.kernels import Norm
from dualnet.kernels.launch import SUMMING, WRITING, LaunchGrid, LaunchShape, match_layout
from dualnet.kernels.norm_kernels import block_of, centre_and_scale, forward_sums, grad_sums, pair, program, store_sums

UNUSED = tl.constexpr(255)  # instead of an index in the window: the ReLU set the value to zero, and no gradient flows


@triton.jit(do_not_specialize=["rows", "out_rows", "splits", "chunk", "height", "width", "out_height", "out_width"])
def normalise_and_pool(
    x, y, chosen, weight, bias, running_mean, running_var, mean, rstd, sums,
    rows, out_rows, channels, splits, chunk, height, width, out_height, out_width, momentum, eps, PARTS: tl.constexpr,
    SIZE: tl.constexpr, PADDING: tl.constexpr, GIVEN: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """chosen: the index in its window, row by row, of the pooled pixel, or UNUSED.

    GIVEN: by the running statistics; neither they nor `chosen` are written.
    """
    part, block, col, real, last = program(out_rows, channels, chunk, BC)
    start, out_start = part.to(tl.int64) * rows * channels, part.to(tl.int64) * out_rows * channels
    centre, scale = centre_and_scale(
        x, running_mean, running_var, mean, rstd, sums, part, block, splits, rows, channels, col, real, momentum, eps,
        PARTS, GIVEN, BC,
    )  # fmt: skip
    w, b = pair(weight, bias, col, real)
    x, y, chosen = x + start, y + out_start, chosen + out_start
    for row_0 in range(block * chunk, last, BM):
        row = row_0 + tl.arange(0, BM)
        inside = (row < last)[:, None] & real[None, :]
        image, i, j = row // (out_height * out_width), row // out_width % out_height, row % out_width
        best = tl.full([BM, BC], float("-inf"), tl.float32)
        best_at = tl.zeros([BM, BC], tl.int32)
        for window in tl.static_range(SIZE * SIZE):
            h, v = 2 * i + window // SIZE - PADDING, 2 * j + window % SIZE - PADDING
            there = inside & ((h >= 0) & (h < height) & (v >= 0) & (v < width))[:, None]
            at = ((image * height + h) * width + v)[:, None] * channels + col[None, :]
            value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
            value = (value - centre[None, :]) * (scale * w)[None, :] + b[None, :]
            better = there & ((value > best) | (value != value))  # a NaN wins, as in max_pool2d
            best = tl.where(better, value, best)
            best_at = tl.where(better, window, best_at)
        at = row[:, None] * channels + col[None, :]
        tl.store(y + at, tl.where(best < 0, 0.0, best).to(y.dtype.element_ty), mask=inside)
        if not GIVEN:
            tl.store(chosen + at, tl.where(best <= 0, UNUSED, best_at).to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize=["rows", "out_rows", "chunk", "height", "width", "out_height", "out_width"])
def pool_sums(
    x, dy, chosen, mean, rstd, sums, rows, out_rows, channels, chunk, height, width, out_height, out_width,
    SIZE: tl.constexpr, PADDING: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """sums of g and g * x_hat: only pooled pixels have a gradient, so only these are visited."""
    part, split, col, real, last = program(out_rows, channels, chunk, BC)
    x += part.to(tl.int64) * rows * channels
    out_start = part.to(tl.int64) * out_rows * channels
    dy, chosen = dy + out_start, chosen + out_start
    centre, scale = pair(mean, rstd, part * channels + col, real)
    sum_1, sum_2 = tl.zeros([BM, BC], tl.float32), tl.zeros([BM, BC], tl.float32)
    for row_0 in range(split * chunk, last, BM):
        row, inside, out_at = block_of(row_0, last, col, real, channels, BM)
        window = tl.load(chosen + out_at, mask=inside, other=UNUSED).to(tl.int32)
        g = tl.load(dy + out_at, mask=inside, other=0.0).to(tl.float32)
        used = window != UNUSED
        g = tl.where(used, g, 0.0)
        image, i, j = row // (out_height * out_width), row // out_width % out_height, row % out_width
        h = (2 * i)[:, None] + window // SIZE - PADDING
        v = (2 * j)[:, None] + window % SIZE - PADDING
        at = ((image[:, None] * height + h) * width + v) * channels + col[None, :]
        x_hat = (tl.load(x + at, mask=used, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
        sum_1 += g
        sum_2 += tl.where(used, g * x_hat, 0.0)
    store_sums(sums, part, split, channels, col, real, sum_1, sum_2)


@triton.jit
def claimed(
    window, g, A: tl.constexpr, B: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    SIZE: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    """What pixel (A, B) of a block of 2 by 2 gets from the window P below and Q to the right of the block's own."""
    down: tl.constexpr = A + PADDING - 2 * P
    right: tl.constexpr = B + PADDING - 2 * Q
    inside: tl.constexpr = down >= 0 and down < SIZE and right >= 0 and right < SIZE
    return tl.where(window == (down * SIZE + right if inside else -1), g, 0.0)


@triton.jit
def block_gradients(
    dy, chosen, image, i, j, inside, channels, out_height, out_width, col, real,
    SIZE: tl.constexpr, PADDING: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """What the four pixels of blocks get from the windows they lie in, float [BM, BC] each."""
    g_00, g_01 = tl.zeros([BM, BC], tl.float32), tl.zeros([BM, BC], tl.float32)
    g_10, g_11 = tl.zeros([BM, BC], tl.float32), tl.zeros([BM, BC], tl.float32)
    for near in tl.static_range((SIZE - 1) * (SIZE - 1)):
        down, right = i + near // (SIZE - 1), j + near % (SIZE - 1)
        there = (inside & (down < out_height) & (right < out_width))[:, None] & real[None, :]
        at = ((image * out_height + down) * out_width + right)[:, None] * channels + col[None, :]
        window = tl.load(chosen + at, mask=there, other=UNUSED).to(tl.int32)
        g = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
        g_00 += claimed(window, g, 0, 0, near // (SIZE - 1), near % (SIZE - 1), SIZE, PADDING)
        g_01 += claimed(window, g, 0, 1, near // (SIZE - 1), near % (SIZE - 1), SIZE, PADDING)
        g_10 += claimed(window, g, 1, 0, near // (SIZE - 1), near % (SIZE - 1), SIZE, PADDING)
        g_11 += claimed(window, g, 1, 1, near // (SIZE - 1), near % (SIZE - 1), SIZE, PADDING)
    return g_00, g_01, g_10, g_11


@triton.jit(do_not_specialize=["rows", "out_rows", "splits", "chunk", "height", "width", "out_height", "out_width"])
def pool_backward(
    x, dy, chosen, dx, weight, dweight, dbias, mean, rstd, sums,
    rows, out_rows, channels, splits, chunk, height, width, out_height, out_width,
    PARTS: tl.constexpr, SIZE: tl.constexpr, PADDING: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """By blocks of 2 by 2 pixels, whose gradients come from the same one or four windows: these are read once."""
    down, right = (height + 1) // 2, (width + 1) // 2  # blocks
    part, block, col, real, last = program(rows // (height * width) * down * right, channels, chunk, BC)
    sum_g, sum_gx = grad_sums(dweight, dbias, sums, part, block, splits, channels, col, real, PARTS, BC)
    centre, scale = pair(mean, rstd, part * channels + col, real)
    w = tl.load(weight + col, mask=real, other=0.0).to(tl.float32)
    start, out_start = part.to(tl.int64) * rows * channels, part.to(tl.int64) * out_rows * channels
    x, dx, dy, chosen = x + start, dx + start, dy + out_start, chosen + out_start
    for row_0 in range(block * chunk, last, BM):
        row = row_0 + tl.arange(0, BM)
        image, i, j = row // (down * right), row // right % down, row % right
        g_00, g_01, g_10, g_11 = block_gradients(
            dy, chosen, image, i, j, row < last, channels, out_height, out_width, col, real, SIZE, PADDING, BM, BC
        )
        for pixel in tl.static_range(4):
            g = g_00 if pixel == 0 else (g_01 if pixel == 1 else (g_10 if pixel == 2 else g_11))
            h, v = 2 * i + pixel // 2, 2 * j + pixel % 2
            inside = ((row < last) & (h < height) & (v < width))[:, None] & real[None, :]
            at = ((image * height + h) * width + v)[:, None] * channels + col[None, :]
            x_hat = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
            grad = (g - (sum_g / rows)[None, :] - x_hat * (sum_gx / rows)[None, :]) * (scale * w)[None, :]
            tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=inside)


class Geometry:
    """Sizes of a map of `shape` [images, channels, height, width] before and after the pool, by part."""

    def __init__(self, shape: Sequence[int], pool: nn.MaxPool2d, parts: int) -> None:
        assert pool.stride == 2
        images, self.channels, height, width = shape
        self.parts = parts
        over = [side + 2 * pool.padding - pool.kernel_size + pool.ceil_mode for side in (height, width)]
        self.sides = (height, width, over[0] // 2 + 1, over[1] // 2 + 1)
        self.rows = images * height * width // parts
        self.out_rows = images * self.sides[2] * self.sides[3] // parts
        self.sizes = (self.rows, self.out_rows, self.channels)
        self.blocks = images * ((height + 1) // 2) * ((width + 1) // 2) // parts
        self.out_shape = (images, self.channels, *self.sides[2:])
        self.window = {"SIZE": pool.kernel_size, "PADDING": pool.padding}
        names = ("HEIGHT", "WIDTH", "OUT_HEIGHT", "OUT_WIDTH")
        self.constants = dict(zip(names, self.sides, strict=True)) | self.window

    def empty_pooled(self, like: Tensor) -> Tensor:
        return torch.empty(self.out_shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)

    def launch(self, shape: LaunchShape, rows: int) -> LaunchGrid:
        return LaunchGrid(shape, self.parts, rows, self.channels)


class FusedPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: Norm, geometry: Geometry):
        ctx.geometry = geometry
        y = geometry.empty_pooled(x)
        chosen = torch.empty_like(y, dtype=torch.uint8)
        mean, rstd = torch.empty(2, geometry.parts, geometry.channels, device=x.device).unbind()
        summing, writing = geometry.launch(SUMMING, geometry.rows), geometry.launch(WRITING, geometry.out_rows)
        sums = summing.empty_sums(x.device)
        forward_sums[summing.grid](x, sums, geometry.rows, geometry.channels, summing.chunk, **summing.options)
        normalise_and_pool[writing.grid](
            x, y, chosen, weight, bias, norm.running_mean, norm.running_var, mean, rstd, sums,
            *geometry.sizes, summing.splits, writing.chunk, *geometry.sides, norm.momentum, norm.eps,
            PARTS=geometry.parts, GIVEN=False, **geometry.window, **writing.options,
        )  # fmt: skip
        ctx.save_for_backward(x, chosen, weight, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        x, chosen, weight, mean, rstd = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        dy = match_layout(grads[0], chosen, x.dtype)  # the pooled map's layout is that of `chosen`
        summing, writing = geometry.launch(SUMMING, geometry.out_rows), geometry.launch(WRITING, geometry.blocks)
        sums = summing.empty_sums(x.device)
        pool_sums[summing.grid](
            x, dy, chosen, mean, rstd, sums, *geometry.sizes, summing.chunk, *geometry.sides,
            **geometry.window, **summing.options,
        )  # fmt: skip
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        pool_backward[writing.grid](
            x, dy, chosen, dx, weight, dweight, dbias, mean, rstd, sums, *geometry.sizes, summing.splits, writing.chunk,
            *geometry.sides, PARTS=geometry.parts, **geometry.window, **writing.options,
        )  # fmt: skip
        return dx, dweight, dbias, None, None


def fused_pool(x: Tensor, norm: Norm, pool: nn.MaxPool2d, parts: int) -> Tensor:
    """`x` must be channels-last."""
    geometry = Geometry(x.shape, pool, parts if norm.training else 1)
    if norm.training:
        return FusedPool.apply(x, norm.weight, norm.bias, norm, geometry)  # pyright: ignore[reportReturnType]
    y, launch = geometry.empty_pooled(x), geometry.launch(WRITING, geometry.out_rows)
    running = (norm.running_mean, norm.running_var)
    normalise_and_pool[launch.grid](
        x, y, y, norm.weight, norm.bias, *running, *running, y, *geometry.sizes, 1, launch.chunk, *geometry.sides,
        norm.momentum, norm.eps, PARTS=1, GIVEN=True, **geometry.window, **launch.options,
    )  # fmt: skip
    return y
