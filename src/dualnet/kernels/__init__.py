"""Triton kernels for CUDA, and the decision between them (fused) and PyTorch's own kernels (eager).

The eager code is the reference: the fused kernels compute the same values up to the order of summation. Triton is
installed with PyTorch for CUDA, and imported only where its kernels run.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

HAS_TRITON = find_spec("triton") is not None
PATCH_VALUES = 11  # stored by the kernels of the first block per value of an image: 32 per pixel of three channels


if TYPE_CHECKING:
    from dualnet.nets import BatchNorm as Norm
    from dualnet.nets.conv import Conv
else:
    Conv = Norm = Any  # this package is below `dualnet.nets` and must not import it


def available(x: Tensor) -> bool:
    """Whether kernels can be launched on the device of the tensor."""
    return x.is_cuda and HAS_TRITON


def can_run(x: Tensor, norm: Norm, values: int = 1) -> bool:
    """Offsets are 32-bit, with `values` stored per value of x. In eval mode there is no backward kernel."""
    return available(x) and 0 < x.numel() * values < 2**31 and (norm.training or not torch.is_grad_enabled())


def can_fuse(x: Tensor, norm: Norm) -> bool:
    """Whether x can be treated as a matrix [rows, channels]: channels-last feature maps, or contiguous features."""
    layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    return can_run(x, norm) and x.is_contiguous(memory_format=layout)


def can_fuse_conv(images: Tensor, conv: Conv, norm: Norm) -> bool:
    """Whether this is a 3x3 convolution of colour images under autocast, and the images need no gradient."""
    is_3x3 = conv.kernel_size == (3, 3) and conv.stride == (1, 1) and conv.padding == (1, 1)
    of_images = conv.in_channels == 3 and not images.requires_grad
    return conv.cast_weight is not None and is_3x3 and of_images and can_run(images, norm, PATCH_VALUES)


def batch_norm(x: Tensor, norm: Norm, parts: int, residual: Tensor | None) -> Tensor:
    """Batch normalisation of each part, then `+ residual`, then ReLU if the norm includes it."""
    if not can_fuse(x, norm):
        return norm.eager(x, parts, residual)
    from dualnet.kernels.norm import fused_norm

    return fused_norm(x, norm, parts, None if residual is None else second_use(residual))


def conv_norm_pool(x: Tensor, conv: Conv, norm: Norm, pool: nn.MaxPool2d, parts: int) -> Tensor:
    """pool(norm(conv(x), parts)): fused completely, without the convolution, or not at all."""
    assert norm.relu
    if can_fuse_conv(x, conv, norm):
        from dualnet.kernels.stem import fused_stem

        return fused_stem(x, conv.cast_weight, conv.bias, norm, pool, parts)
    if not x.is_cuda:
        x = x.contiguous(memory_format=torch.channels_last)  # else the convolution would copy it in both passes
    x = conv(x)
    if can_fuse(x, norm):
        from dualnet.kernels.pool import fused_pool

        return fused_pool(x, norm, pool, parts)
    return norm.eager(x, parts, pool=pool)


def second_use(x: Tensor) -> Tensor:
    """The tensor to pass to the second consumer of x, a residual sum or a shortcut: x, or a `twin` in the same memory.

    `fused_norm` gives the output of a block such a twin. Its first backward kernel receives the gradients of both and
    adds them while reading, so that autograd launches no kernel for the sum.
    """
    return getattr(x, "twin", x)
