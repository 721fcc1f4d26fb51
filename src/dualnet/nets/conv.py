"""Convolutions whose weights are cast to the precision of autocast all at once, not one kernel each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Conv(nn.Conv2d):
    """nn.Conv2d that uses `ready`, its weight cast before, while there is one."""

    ready: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name in torch)
        return self._conv_forward(input, self.weight if self.ready is None else self.ready, self.bias)


class CastTogether(torch.autograd.Function):
    """The tensors in another type, in few kernels for all, and their gradients back in the same way."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor):
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return tuple(copied(tensors, [dtype] * len(tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return None, *copied(grads, ctx.dtypes)


def copied(tensors: tuple[Tensor, ...], dtypes: list[torch.dtype]) -> list[Tensor]:
    out = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    torch._foreach_copy_(out, list(tensors))  # pyright: ignore[reportPrivateImportUsage]
    return out


@contextmanager
def weights_cast(net: nn.Module) -> Iterator[None]:
    """Within it the convolutions of a network have their weights in the type of autocast, if that is on."""
    device = next(net.parameters()).device.type
    if not torch.is_autocast_enabled(device):
        yield
        return
    convs = [module for module in net.modules() if isinstance(module, Conv)]
    cast: Any = CastTogether.apply(torch.get_autocast_dtype(device), *(conv.weight for conv in convs))
    for conv, weight in zip(convs, cast, strict=True):
        conv.ready = weight
    try:
        yield
    finally:
        for conv in convs:
            conv.ready = None
