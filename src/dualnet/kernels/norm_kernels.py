"""BatchNorm, residual sum and ReLU as Triton kernels, for channels-last tensors on CUDA; norm.py launches them.

The input is a matrix [parts, rows, channels]: a row is a pixel of an example. A part starts at a 64-bit offset; within
it offsets have 32 bits, which halves the address arithmetic. For a large map the first kernel sums over blocks of rows;
the second adds these sums up, each program for its own channels, and writes the result. The kernels for a small map
keep all rows of a few channels in registers.
"""

import triton
import triton.language as tl

SPLITS_AT_A_TIME = tl.constexpr(32)


@triton.jit
def columns(program, channels, BC: tl.constexpr):
    """The channels of a program, and which of them exist."""
    col = program * BC + tl.arange(0, BC)
    return col, col < channels


@triton.jit
def program(rows, channels, chunk, BC: tl.constexpr):
    """The part of a program and its index there, its channels, which of them exist, and the end of its rows."""
    part, number = tl.program_id(0), tl.program_id(1)
    col, real = columns(tl.program_id(2), channels, BC)
    return part, number, col, real, tl.minimum((number + 1) * chunk, rows)


@triton.jit
def block_of(first, last, col, real, channels, BM: tl.constexpr):
    """The block of rows from `first` on: their indices, a mask of the values before `last`, and the offsets."""
    row = first + tl.arange(0, BM)
    return row, (row < last)[:, None] & real[None, :], row[:, None] * channels + col[None, :]


@triton.jit
def pair(first, second, at, real):
    """Two vectors over channels, such as weight and bias, as float32."""
    first_value = tl.load(first + at, mask=real, other=0.0).to(tl.float32)
    return first_value, tl.load(second + at, mask=real, other=0.0).to(tl.float32)


@triton.jit
def store_pair(first, second, at, first_value, second_value, real):
    tl.store(first + at, first_value, mask=real)
    tl.store(second + at, second_value, mask=real)


@triton.jit(do_not_specialize=["rows", "chunk"])
def forward_sums(x, sums, rows, channels, chunk, BM: tl.constexpr, BC: tl.constexpr):
    """sums[part, split, 0 or 1, channel] of x - pivot and of its square.

    The pivot is the part's first pixel: the variance as a difference of two large numbers would lose its digits.
    """
    part, split, col, real, last = program(rows, channels, chunk, BC)
    x += part.to(tl.int64) * rows * channels
    pivot = tl.load(x + col, mask=real, other=0.0).to(tl.float32)
    sum_1, sum_2 = tl.zeros([BM, BC], tl.float32), tl.zeros([BM, BC], tl.float32)
    for row_0 in range(split * chunk, last, BM):
        _, inside, at = block_of(row_0, last, col, real, channels, BM)
        value = tl.where(inside, tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - pivot[None, :], 0.0)
        sum_1 += value
        sum_2 += value * value
    store_sums(sums, part, split, channels, col, real, sum_1, sum_2)


@triton.jit
def store_sums(sums, part, split, channels, col, real, sum_1, sum_2):
    at = ((part * tl.num_programs(1) + split) * 2) * channels + col
    store_pair(sums, sums + channels, at, tl.sum(sum_1, axis=0), tl.sum(sum_2, axis=0), real)


@triton.jit
def grad_before_relu(
    y, dy, dy_2, dresidual, at, inside, x_hat, w, b, RELU: tl.constexpr, RESIDUAL: tl.constexpr, TWO: tl.constexpr
):
    """With a residual: the gradient of the sum, from one or two consumers, stored and then used as rounded.

    Without a residual, x, w and b determine where the ReLU was zero, and y is not read. If the loss is differentiated
    again after a step, w and b are the new ones.
    """
    g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    if TWO:
        g += tl.load(dy_2 + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        out = tl.load(y + at, mask=inside, other=0.0).to(tl.float32) if RESIDUAL else x_hat * w[None, :] + b[None, :]
        g = tl.where(out > 0, g, 0.0)
    if RESIDUAL:
        rounded = g.to(dresidual.dtype.element_ty)
        tl.store(dresidual + at, rounded, mask=inside)
        g = rounded.to(tl.float32)
    return g


@triton.jit(do_not_specialize=["rows", "chunk"])
def backward_sums(
    x, y, dy, dy_2, dresidual, weight, bias, mean, rstd, sums, rows, channels, chunk,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, TWO: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """sums[part, split, 0 or 1, channel] of the gradient g and of g * x_hat."""
    part, split, col, real, last = program(rows, channels, chunk, BC)
    start = part.to(tl.int64) * rows * channels
    x, y, dy, dy_2, dresidual = x + start, y + start, dy + start, dy_2 + start, dresidual + start
    centre, scale = pair(mean, rstd, part * channels + col, real)
    w, b = pair(weight, bias, col, real)
    sum_1, sum_2 = tl.zeros([BM, BC], tl.float32), tl.zeros([BM, BC], tl.float32)
    for row_0 in range(split * chunk, last, BM):
        _, inside, at = block_of(row_0, last, col, real, channels, BM)
        x_hat = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
        g = grad_before_relu(y, dy, dy_2, dresidual, at, inside, x_hat, w, b, RELU, RESIDUAL, TWO)
        sum_1 += g
        sum_2 += g * x_hat
    store_sums(sums, part, split, channels, col, real, sum_1, sum_2)


@triton.jit
def summed(sums, part, splits, channels, col, real, BC: tl.constexpr):
    """Both sums of a part over all splits, float [BC] each."""
    sum_1, sum_2 = tl.zeros([SPLITS_AT_A_TIME, BC], tl.float32), tl.zeros([SPLITS_AT_A_TIME, BC], tl.float32)
    for first in range(0, splits, SPLITS_AT_A_TIME):
        split = first + tl.arange(0, SPLITS_AT_A_TIME)
        at = ((part * splits + split) * 2)[:, None] * channels + col[None, :]
        inside = (split < splits)[:, None] & real[None, :]
        sum_1 += tl.load(sums + at, mask=inside, other=0.0)
        sum_2 += tl.load(sums + at + channels, mask=inside, other=0.0)
    return tl.sum(sum_1, axis=0), tl.sum(sum_2, axis=0)


@triton.jit
def statistics(x, sums, part, splits, rows, channels, col, real, BC: tl.constexpr):
    sum_1, sum_2 = summed(sums, part, splits, channels, col, real, BC)
    pivot = tl.load(x + part.to(tl.int64) * rows * channels + col, mask=real, other=0.0).to(tl.float32)
    shift = sum_1 / rows
    return pivot + shift, tl.maximum(sum_2 / rows - shift * shift, 0.0)


@triton.jit
def centre_and_scale(
    x, running_mean, running_var, mean, rstd, sums, part, block, splits, rows, channels, col, real, momentum, eps,
    PARTS: tl.constexpr, GIVEN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / std of a part, float [BC] each. The first programs store them and update the running statistics."""
    if GIVEN:
        centre, var = pair(running_mean, running_var, col, real)
        scale = 1.0 / tl.sqrt(var + eps)
    else:
        centre, var = statistics(x, sums, part, splits, rows, channels, col, real, BC)
        scale = 1.0 / tl.sqrt(var + eps)
        if block == 0:
            store_pair(mean, rstd, part * channels + col, centre, scale, real)
            if part == 0:
                run_mean, run_var = pair(running_mean, running_var, col, real)
                for other in tl.static_range(PARTS):  # once per part, in order
                    part_mean, part_var = statistics(x, sums, part + other, splits, rows, channels, col, real, BC)
                    run_mean = (1 - momentum) * run_mean + momentum * part_mean
                    run_var = (1 - momentum) * run_var + momentum * part_var * (rows / (rows - 1.0))
                store_pair(running_mean, running_var, col, run_mean, run_var, real)
    return centre, scale


@triton.jit
def grad_sums(dweight, dbias, sums, part, block, splits, channels, col, real, PARTS: tl.constexpr, BC: tl.constexpr):
    """Both sums of a part. The first programs store the gradients of weight and bias, the sums over all parts."""
    sum_g, sum_gx = summed(sums, part, splits, channels, col, real, BC)
    if (block == 0) & (part == 0):
        total_g, total_gx = sum_g, sum_gx
        for other in tl.static_range(1, PARTS):
            other_g, other_gx = summed(sums, other, splits, channels, col, real, BC)
            total_g += other_g
            total_gx += other_gx
        store_pair(dbias, dweight, col, total_g, total_gx, real)
    return sum_g, sum_gx


@triton.jit(do_not_specialize=["rows", "splits", "chunk"])
def normalise(
    x, residual, y, weight, bias, running_mean, running_var, mean, rstd, sums,
    rows, channels, splits, chunk, momentum, eps, PARTS: tl.constexpr, RELU: tl.constexpr,
    RESIDUAL: tl.constexpr, GIVEN: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """GIVEN: normalise by the running statistics, which are not updated."""
    part, block, col, real, last = program(rows, channels, chunk, BC)
    start = part.to(tl.int64) * rows * channels
    centre, scale = centre_and_scale(
        x, running_mean, running_var, mean, rstd, sums, part, block, splits, rows, channels, col, real, momentum, eps,
        PARTS, GIVEN, BC,
    )  # fmt: skip
    w, b = pair(weight, bias, col, real)
    x, residual, y = x + start, residual + start, y + start
    for row_0 in range(block * chunk, last, BM):
        _, inside, at = block_of(row_0, last, col, real, channels, BM)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        value = (value - centre[None, :]) * (scale * w)[None, :] + b[None, :]
        if RESIDUAL:
            value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0, 0.0, value)  # a maximum would lose a NaN
        tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "splits", "chunk"])
def normalise_backward(
    x, dy, dx, weight, bias, dweight, dbias, mean, rstd, sums, rows, channels, splits, chunk,
    PARTS: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """With a residual, dy is already the gradient before the ReLU, and RELU is False."""
    part, block, col, real, last = program(rows, channels, chunk, BC)
    start = part.to(tl.int64) * rows * channels
    sum_g, sum_gx = grad_sums(dweight, dbias, sums, part, block, splits, channels, col, real, PARTS, BC)
    centre, scale = pair(mean, rstd, part * channels + col, real)
    w, b = pair(weight, bias, col, real)
    x, dy, dx = x + start, dy + start, dx + start
    for row_0 in range(block * chunk, last, BM):
        _, inside, at = block_of(row_0, last, col, real, channels, BM)
        x_hat = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
        g = grad_before_relu(dy, dy, dy, dy, at, inside, x_hat, w, b, RELU, False, False)
        grad = (g - (sum_g / rows)[None, :] - x_hat * (sum_gx / rows)[None, :]) * (scale * w)[None, :]
        tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def normalise_small(
    x, residual, y, weight, bias, running_mean, running_var, mean, rstd, rows, channels, momentum, eps,
    PARTS: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """All rows of some channels at once, part by part, so that the running statistics are updated in order."""
    col, real = columns(tl.program_id(0), channels, BC)
    _, inside, at = block_of(0, rows, col, real, channels, BM)
    w, b = pair(weight, bias, col, real)
    run_mean, run_var = pair(running_mean, running_var, col, real)
    for part in range(PARTS):
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        centre = tl.sum(value, axis=0) / rows
        value = tl.where(inside, value - centre[None, :], 0.0)
        var = tl.sum(value * value, axis=0) / rows
        scale = 1.0 / tl.sqrt(var + eps)
        run_mean = (1 - momentum) * run_mean + momentum * centre
        run_var = (1 - momentum) * run_var + momentum * var * (rows / (rows - 1.0))
        store_pair(mean, rstd, part * channels + col, centre, scale, real)
        value = value * (scale * w)[None, :] + b[None, :]
        if RESIDUAL:
            value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0, 0.0, value)
        tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)
        at += rows * channels
    store_pair(running_mean, running_var, col, run_mean, run_var, real)


@triton.jit(do_not_specialize=["rows"])
def normalise_small_backward(
    x, y, dy, dy_2, dresidual, dx, weight, bias, dweight, dbias, mean, rstd, rows, channels,
    PARTS: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, TWO: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    col, real = columns(tl.program_id(0), channels, BC)
    _, inside, at = block_of(0, rows, col, real, channels, BM)
    w, b = pair(weight, bias, col, real)
    total_g, total_gx = tl.zeros([BC], tl.float32), tl.zeros([BC], tl.float32)
    for part in range(PARTS):
        centre, scale = pair(mean, rstd, part * channels + col, real)
        x_hat = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
        g = grad_before_relu(y, dy, dy_2, dresidual, at, inside, x_hat, w, b, RELU, RESIDUAL, TWO)
        sum_g, sum_gx = tl.sum(g, axis=0), tl.sum(g * x_hat, axis=0)
        total_g += sum_g
        total_gx += sum_gx
        grad = (g - (sum_g / rows)[None, :] - x_hat * (sum_gx / rows)[None, :]) * (scale * w)[None, :]
        tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=inside)
        at += rows * channels
    store_pair(dbias, dweight, col, total_g, total_gx, real)
