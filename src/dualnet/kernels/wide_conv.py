"""3x3 convolutions of many channels by matrix products, on processors with AVX2, where oneDNN's kernels are slower.

For training in float32. The results are oneDNN's up to the order of summation; docs/performance.md has the gain.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IS_FASTER = torch.backends.cpu.get_cpu_capability() == "AVX2"  # with AVX-512 oneDNN has other kernels
FEWEST_CHANNELS = 128  # of the output
PATCHES_AT_ONCE = 512  # at least: enough rows for a fast product, few enough to bound the memory


def can_multiply(conv: nn.Conv2d, x: Tensor, weight: Tensor) -> bool:
    if not (IS_FASTER and conv.out_channels >= FEWEST_CHANNELS and torch.is_grad_enabled() and weight.requires_grad):
        return False
    if x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    is_3x3 = (conv.kernel_size, conv.padding, conv.dilation, conv.groups) == ((3, 3), (1, 1), (1, 1), 1)
    channels_last = all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (x, weight))
    return is_3x3 and channels_last and x.dtype == weight.dtype == torch.float32


def wide_conv(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...]) -> Tensor:
    """The convolution, if `can_multiply`."""
    if x.shape[2:] == (2, 2) and stride == (1, 1) and bias is None:
        return SmallConv.apply(x, weight)  # pyright: ignore[reportReturnType]
    return PatchConv.apply(x, weight, bias, stride)  # pyright: ignore[reportReturnType]


class SmallConv(torch.autograd.Function):
    """A convolution of 2x2 maps. Each output pixel depends on all four input pixels; its other five taps meet padding.

    The upper two pixels of an image are a row of one matrix, the lower two of another. Of each row of taps, the output
    pixels of the left column use the last two, those of the right column the first two.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor):
        ctx.save_for_backward(x, weight)
        upper, lower = halves(x)
        out = x.new_empty(len(x), 2, 2, len(weight))
        for column, (top, middle, bottom) in enumerate(pairs_of_taps(weight)):
            torch.mm(upper, middle.T, out=out[:, 0, column]).addmm_(lower, bottom.T)
            torch.mm(upper, top.T, out=out[:, 1, column]).addmm_(lower, middle.T)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        (grad,), (x, weight) = grads, ctx.saved_tensors
        grad_x, grad_weight = torch.zeros_like(x), torch.zeros_like(weight)
        (upper, lower), (grad_upper, grad_lower) = halves(x), halves(grad_x)
        taps = zip(pairs_of_taps(weight), pairs_of_taps(grad_weight), strict=True)
        for column, ((top, middle, bottom), (grad_top, grad_middle, grad_bottom)) in enumerate(taps):
            above, below = grad[:, :, 0, column], grad[:, :, 1, column]
            grad_upper.addmm_(above, middle).addmm_(below, top)
            grad_lower.addmm_(above, bottom).addmm_(below, middle)
            grad_top.addmm_(below.T, upper)
            grad_middle.addmm_(above.T, upper).addmm_(below.T, lower)
            grad_bottom.addmm_(above.T, lower)
        return grad_x, grad_weight


def halves(x: Tensor) -> tuple[Tensor, ...]:
    """The upper and the lower two pixels of every image, as views [images, 2 * channels]."""
    return x.permute(0, 2, 3, 1).view(len(x), 2, -1).unbind(1)


def pairs_of_taps(weight: Tensor) -> list[tuple[Tensor, ...]]:
    """For the left and the right output column: two taps of each of the three rows, as views [out, 2 * in]."""
    channels = weight.shape[1]
    rows = weight.permute(0, 2, 3, 1).view(len(weight), 3, -1)
    return [rows[:, :, first * channels : (first + 2) * channels].unbind(1) for first in (1, 0)]


class PatchConv(torch.autograd.Function):
    """oneDNN's convolution, but with a weight gradient that is a product of matrices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int]):
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        return F.conv2d(x, weight, bias, stride, padding=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        (grad,), (x, weight), (of_x, _, of_bias, _) = grads, ctx.saved_tensors, ctx.needs_input_grad
        options = (ctx.stride, [1, 1], [1, 1], False, [0, 0], 1)  # stride, padding, dilation, not transposed, one group
        grad_x = torch.ops.aten.convolution_backward(grad, x, weight, None, *options, [of_x, False, False])[0]
        grad_bias = grad.sum((0, 2, 3)) if of_bias else None
        return grad_x, weight_gradient(x, grad, ctx.stride), grad_bias, None


def weight_gradient(x: Tensor, grad: Tensor, stride: tuple[int, int]) -> Tensor:
    """The gradient of the weight, channels-last: that of the output times the patches of x, some images at a time."""
    (images, channels, height, width), (down, right) = grad.shape, stride
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).contiguous()
    image, row, pixel, _ = padded.stride()
    of_three_rows = (images, height, width, 3, 3 * pixel)  # each of three pixels
    patches = padded.as_strided(of_three_rows, (image, down * row, right * pixel, row, 1))
    num = -(-PATCHES_AT_ONCE // (height * width))
    total = x.new_zeros(channels, 9 * pixel)
    for some, grads in zip(patches.split(num), grad.permute(0, 2, 3, 1).split(num), strict=True):
        total.addmm_(grads.reshape(-1, channels).T, some.reshape(-1, 9 * pixel))
    return total.view(channels, 3, 3, pixel).permute(0, 3, 1, 2)
