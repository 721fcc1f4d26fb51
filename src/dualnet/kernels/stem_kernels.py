"""The first block of a network as Triton kernels, for CUDA; stem.py launches them.

Images have three channels, so the convolution's output x, the largest map of the network, is cheaper to compute again
than to store: it is never written. BatchNorm and the gradients need only sums over its pixels, and x = W p is linear
in the patch p of 27 values. With the matrix G of the sums of p p^T over a part's n pixels, p ending in a 1:

    mean of x         = W sum(p) / n
    variance of x     = W (G / n - mean(p) mean(p)^T) W^T
    sum of p x_hat    = (G W^T - sum(p) mean) / std

and, with S the sum of g p^T over the pooled pixels, whose gradient before the ReLU is g, the gradient of W is

    scale / std (S - sum(g) sum(p) / n - sum(g x_hat) sum(p x_hat) / n),    sum(g x_hat) = (W S - sum(g) mean) / std
"""

import triton
import triton.language as tl

from dualnet.kernels.norm_kernels import block_of, columns, pair, program, store_pair
from dualnet.kernels.pool import UNUSED

TAPS = tl.constexpr(27)  # of a 3x3 convolution of three channels
PADDED_TAPS = tl.constexpr(32)  # matrix products need powers of two; the 28th is a 1
LAST_BITS = tl.constexpr(15)  # mask of the bits that hold the index of a pixel in its window


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
    """The patches at one place in the windows of pooled pixels: a matrix [rows, PADDED_TAPS].

    Outside of the image the nearest pixel of it: that is in the window too and leaves the maximum as it is.
    """
    image, i, j = row // (OUT_HEIGHT * OUT_WIDTH), row // OUT_WIDTH % OUT_HEIGHT, row % OUT_WIDTH
    h = tl.minimum(tl.maximum(2 * i + (window // SIZE - PADDING), 0), HEIGHT - 1)
    v = tl.minimum(tl.maximum(2 * j + (window % SIZE - PADDING), 0), WIDTH - 1)
    pixel = (image * HEIGHT + h) * WIDTH + v
    return tl.load(patches + pixel[:, None] * PADDED_TAPS + tl.arange(0, PADDED_TAPS)[None, :])


@triton.jit
def load_weights(kernel, col, real):
    """[PADDED_TAPS, channels], zero after the taps."""
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
    """Of the convolution's output without its `shift`, which BatchNorm subtracts again."""
    col, real = columns(tl.program_id(0), channels, BC)
    w = load_weights(kernel, col, real).to(tl.float32)
    run_mean, run_var = pair(running_mean, running_var, col, real)
    shifted = tl.load(shift + col, mask=real, other=0.0).to(tl.float32) if HAS_SHIFT else 0.0
    tap = tl.arange(0, PADDED_TAPS)
    for part in tl.static_range(PARTS):
        start = products + part * PADDED_TAPS * PADDED_TAPS
        average = tl.load(start + tap * PADDED_TAPS + TAPS) / rows
        across = tl.load(start + TAPS * PADDED_TAPS + tap) / rows  # the same, along the other side of the matrix
        spread = matrix(start) / rows - average[:, None] * across[None, :]
        centre = tl.sum(w * average[:, None], axis=0)
        var = tl.maximum(tl.sum(w * tl.dot(spread, w, input_precision="ieee"), axis=0), 0.0)
        store_pair(mean, rstd, part * channels + col, centre, 1.0 / tl.sqrt(var + eps), real)
        run_mean = (1 - momentum) * run_mean + momentum * (centre + shifted)
        run_var = (1 - momentum) * run_var + momentum * var * (rows / (rows - 1.0))
    store_pair(running_mean, running_var, col, run_mean, run_var, real)


@triton.jit(do_not_specialize=["out_rows", "chunk"])
def stem_pool(
    patches, kernel, weight, bias, mean, rstd, y, chosen, out_rows, channels, chunk,
    SIZE: tl.constexpr, PADDING: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The pooled map; chosen: the index in its window, row by row, of the pooled pixel, or UNUSED.

    The index is stored in the last bits of its value, so that one maximum finds both. Where BatchNorm's weight is
    negative the convolution's is negated, so that the maximum of x is the maximum after BatchNorm too.
    """
    part, block, col, real, last = program(out_rows, channels, chunk, BC)
    w, b = pair(weight, bias, col, real)
    centre, scale = pair(mean, rstd, part * channels + col, real)
    slope = scale * w
    level = b - slope * centre
    kernels = load_weights(kernel, col, real)
    kernels = tl.where((slope < 0)[None, :], -kernels, kernels)
    slope = tl.abs(slope)
    start = part.to(tl.int64) * out_rows * channels
    y, chosen = y + start, chosen + start
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
    part, split, col, real, last = program(out_rows, channels, chunk, BC)
    start = part.to(tl.int64) * out_rows * channels
    dy, chosen = dy + start, chosen + start
    total = tl.zeros([PADDED_TAPS, BC], tl.float32)
    for first in range(split * chunk, last, BM):
        row, inside, at = block_of(first, last, col, real, channels, BM)
        shown = part * out_rows + tl.minimum(row, last - 1)
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
    col, real = columns(tl.program_id(0), channels, BC)
    tap = tl.arange(0, PADDED_TAPS)
    w = load_weights(kernel, col, real).to(tl.float32)
    of_kernel = tl.zeros([PADDED_TAPS, BC], tl.float32)
    of_weight, of_bias = tl.zeros([BC], tl.float32), tl.zeros([BC], tl.float32)
    for part in tl.static_range(PARTS):
        centre, scale = pair(mean, rstd, part * channels + col, real)
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
        tl.store(dshift + col, tl.zeros([BC], tl.float32), mask=real)  # BatchNorm subtracts every shift again
    store_pair(dweight, dbias, col, of_weight, of_bias, real)
