"""Batch normalisation of several batches in one pass, with what follows it: the residual sum and the ReLU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualnet.kernels import has_triton
from dualnet.nets.conv import Conv

PATCH_VALUES = 11  # that the first block's kernels make of one of an image's: 32 of the three of a pixel


class Pool(NamedTuple):
    """A max-pool of stride 2."""

    size: int
    padding: int = 0
    ceil_mode: bool = False

    def out_side(self, side: int) -> int:
        over = side + 2 * self.padding - self.size
        return (over + 1 if self.ceil_mode else over) // 2 + 1


class BatchNorm(nn.Module):
    """Batch normalisation, then `+ residual`, then ReLU if asked.

    `parts` says how many equal batches lie one behind the other in the input. Each is normalised by its own
    statistics, and the running ones move once per part, in order: the same numbers as one pass per part, in fewer
    and larger kernels.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, relu: bool = True, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.relu, self.momentum, self.eps = relu, momentum, eps

    def forward(self, x: Tensor, parts: int = 1, residual: Tensor | None = None) -> Tensor:
        if self.can_fuse(x):
            from dualnet.kernels.norm import fused_norm  # needs Triton, which comes with PyTorch for CUDA

            return fused_norm(x, self, parts, residual)[0]
        out = torch.cat([self.normalise(part) for part in x.chunk(parts)]) if parts > 1 else self.normalise(x)
        if residual is not None:
            out = out + residual
        return F.relu(out, inplace=True) if self.relu else out

    def forked(self, x: Tensor, parts: int, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The result twice, for two consumers: their gradients then meet in the fused kernels, not in one more."""
        if self.can_fuse(x):
            from dualnet.kernels.norm import fused_norm

            return fused_norm(x, self, parts, residual)
        out = self(x, parts, residual)
        return out, out

    def pooled(self, x: Tensor, pool: Pool, parts: int = 1) -> Tensor:
        """Normalised, cut off by the ReLU and max-pooled."""
        assert self.relu
        if self.can_fuse(x):
            from dualnet.kernels.pool import fused_pool

            return fused_pool(x, self, pool, parts)
        return F.max_pool2d(self(x, parts), pool.size, 2, pool.padding, ceil_mode=pool.ceil_mode)

    def of_conv(self, images: Tensor, conv: Conv, pool: Pool, parts: int = 1) -> Tensor:
        """A convolution's output normalised, cut off and max-pooled; on images in one go where Triton can."""
        if conv.ready is not None and self.can_run_kernels(images, PATCH_VALUES) and is_stem(images, conv):
            from dualnet.kernels.stem import fused_stem

            return fused_stem(images, conv.ready, conv.bias, self, pool, parts)
        return self.pooled(conv(images), pool, parts)

    def can_fuse(self, x: Tensor) -> bool:
        """Whether the Triton kernels can take it: a matrix [rows, channels] in the memory of a CUDA device."""
        if not self.can_run_kernels(x):
            return False
        return x.is_contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.is_contiguous()

    def can_run_kernels(self, x: Tensor, values: int = 1) -> bool:
        """By the running statistics they answer only, there is no way back; their offsets are of 32 bits.

        `values` is how many they make of one of x.
        """
        if not x.is_cuda or not has_triton() or not 0 < x.numel() * values < 2**31:
            return False
        return self.training or not torch.is_grad_enabled()

    def normalise(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )


def is_stem(images: Tensor, conv: Conv) -> bool:
    """Whether it is a 3x3 convolution of three channels, and no gradient is asked for before it."""
    plain = conv.kernel_size == (3, 3) and conv.stride == (1, 1) and conv.padding == (1, 1)
    return plain and conv.in_channels == 3 and not images.requires_grad


def forward_batches(net: Callable[..., Tensor], batches: Sequence[Tensor], joint: bool = False) -> list[Tensor]:
    """Batches through `net(images, parts)`, each normalised by its own statistics, or jointly as one batch.

    Neighbours of equal size share a pass.
    """
    groups = [list(batches)] if joint else [list(group) for _, group in itertools.groupby(batches, len)]
    outputs: list[Tensor] = []
    for group in groups:
        images = torch.cat(group) if len(group) > 1 else group[0]
        outputs += net(images, 1 if joint else len(group)).split([len(batch) for batch in group])
    return outputs
