"""Batch normalisation of several batches in one pass, with the residual sum and ReLU that follow it."""

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualnet import kernels


class BatchNorm(nn.Module):
    """Batch normalisation, then `+ residual`, then ReLU if asked.

    `parts` is the number of batches of equal size that are concatenated in the input. Each is normalised by its own
    statistics, and the running statistics are updated once per part, in order. The results are those of one pass per
    part, computed by fewer and larger kernels.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    momentum, eps = 0.1, 1e-5  # PyTorch's defaults

    def __init__(self, num_features: int, relu: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.relu = relu

    def forward(self, x: Tensor, parts: int = 1, residual: Tensor | None = None) -> Tensor:
        return kernels.batch_norm(x, self, parts, residual)

    def eager(self, x: Tensor, parts: int, residual: Tensor | None = None, pool: nn.MaxPool2d | None = None) -> Tensor:
        """The reference for the fused kernels. Pooling before the ReLU gives the same values with less work."""
        out = torch.cat([self.normalise(part) for part in x.chunk(parts)]) if parts > 1 else self.normalise(x)
        if residual is not None:
            out = out + residual
        if pool is not None:
            out = pool(out.float()).to(out.dtype)  # in bfloat16 it takes twice the time on the CPU
        return F.relu(out, inplace=True) if self.relu else out

    def normalise(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )


def forward_batches(net: Callable[..., Tensor], batches: Sequence[Tensor], joint: bool = False) -> list[Tensor]:
    """The outputs of `net(images, parts)` for several batches, normalised separately, or jointly as one batch.

    Neighbouring batches of equal size share a forward pass, and empty ones have none; the first is not empty.
    """
    groups = [list(batches)] if joint else [list(group) for _, group in itertools.groupby(batches, len)]
    outputs: list[Tensor] = []
    for group in groups:
        if len(group[0]) == 0:
            outputs += [outputs[0][:0] for _ in group]
            continue
        images = torch.cat(group) if len(group) > 1 else group[0]
        outputs += net(images, 1 if joint else len(group)).split([len(batch) for batch in group])
    return outputs
