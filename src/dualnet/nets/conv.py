"""Convolutions whose weights are cast for autocast all together, instead of by one kernel each."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualnet.kernels import second_use
from dualnet.kernels.wide_conv import can_multiply, wide_conv

# oneDNN's AVX2 kernel for the weight gradient of a strided 1x1 convolution writes past its buffer if the input is
# channels-last with fewer than 8 channels (oneDNN issue 6035; torch 2.13.0), which ends in a segmentation fault.
HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512" and "ONEDNN_MAX_CPU_ISA" not in os.environ
FEWEST_STRIDED_CHANNELS = 0 if HAS_AVX512 else 8


class Conv(nn.Conv2d):
    """nn.Conv2d that uses `cast_weight` instead of its weight within `autocast_weights`."""

    cast_weight: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name in torch)
        weight = self.weight if self.cast_weight is None else self.cast_weight
        if can_multiply(self, input, weight):
            return wide_conv(input, weight, self.bias, self.stride)
        if self.kernel_size != (1, 1):
            return self._conv_forward(input, weight, self.bias)
        x = second_use(input)  # the shortcut of a residual block, whose other branch uses the input too
        if x.device.type == "cpu" and self.in_channels < FEWEST_STRIDED_CHANNELS:
            rows, columns = self.stride
            return F.conv2d(x[:, :, ::rows, ::columns], weight, self.bias)
        return self._conv_forward(x, weight, self.bias)


class CastTogether(torch.autograd.Function):
    """Casts tensors to another dtype by a few kernels for all of them, and their gradients back likewise."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor):
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return tuple(cast_all(tensors, [dtype] * len(tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return None, *cast_all(grads, ctx.dtypes)


def cast_all(tensors: tuple[Tensor, ...], dtypes: list[torch.dtype]) -> list[Tensor]:
    out = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    torch._foreach_copy_(out, list(tensors))  # pyright: ignore[reportPrivateImportUsage]
    return out


@contextmanager
def autocast_weights(net: nn.Module) -> Iterator[None]:
    """While autocast is on, the convolutions of the network use weights that are cast together here."""
    device = next(net.parameters()).device.type
    if not torch.is_autocast_enabled(device):
        yield
        return
    convs = [module for module in net.modules() if isinstance(module, Conv)]
    cast: Any = CastTogether.apply(torch.get_autocast_dtype(device), *(conv.weight for conv in convs))
    for conv, weight in zip(convs, cast, strict=True):
        conv.cast_weight = weight
    try:
        yield
    finally:
        for conv in convs:
            conv.cast_weight = None
