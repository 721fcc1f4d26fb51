"""Batch normalisation of several batches in one pass, with what follows it: the residual sum and the ReLU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
        if self.training and can_fuse(x):
            from dualnet.nets.fused_norm import fused_norm  # needs Triton, which comes with PyTorch for CUDA

            return fused_norm(x, self, parts, residual)
        out = torch.cat([self.normalise(part) for part in x.chunk(parts)]) if parts > 1 else self.normalise(x)
        if residual is not None:
            out = out + residual
        return F.relu(out, inplace=True) if self.relu else out

    def normalise(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )


def can_fuse(x: Tensor) -> bool:
    """Whether the Triton kernels can take it: a matrix [rows, channels] in the memory of a CUDA device."""
    if not x.is_cuda or not has_triton():
        return False
    return x.is_contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.is_contiguous()


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def apart(net: Callable[..., Tensor], first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Two batches through `net(images, parts)`, each normalised by its own statistics; in one pass if alike."""
    if first.shape != second.shape:
        return net(first, 1), net(second, 1)
    out_first, out_second = net(torch.cat([first, second]), 2).chunk(2)
    return out_first, out_second
