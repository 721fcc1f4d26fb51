"""How kernels are launched: the size of a program's work, the grid of programs, the layout of their inputs."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

CHANNELS_AT_A_TIME = 32


class LaunchShape(NamedTuple):
    """Rows per iteration of a program's loop, its warps, how many programs fill an H200, and pipeline stages."""

    rows: int
    warps: int
    programs: int
    stages: int = 1  # with more, a loop of matrix products loads its next operands while it computes


SUMMING = LaunchShape(256, 16, 66)  # few and large: every program of the second kernel reads all of their sums
WRITING = LaunchShape(64, 4, 528)  # with more, five learners side by side are slower: each program takes time to start


class LaunchGrid:
    """How a matrix [parts, rows, channels] is split: each program takes `chunk` rows of a part and some channels."""

    def __init__(self, shape: LaunchShape, parts: int, rows: int, channels: int, at_a_time: int = CHANNELS_AT_A_TIME):
        assert rows * channels < 2**31, "a part is too large for 32-bit offsets"
        columns = triton.cdiv(channels, at_a_time)
        wanted = max(1, shape.programs // (parts * columns))
        self.chunk = triton.cdiv(triton.cdiv(rows, wanted), shape.rows) * shape.rows
        self.splits = triton.cdiv(rows, self.chunk)
        self.grid = (parts, self.splits, columns)
        self.options = {"BM": shape.rows, "BC": at_a_time, "num_warps": shape.warps, "num_stages": shape.stages}
        self.parts, self.channels = parts, channels

    def empty_sums(self, device: torch.device) -> Tensor:
        return torch.empty(self.parts, self.splits, 2, self.channels, device=device)


def like(tensor: Tensor, model: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor in the model's layout and in its dtype or the one given, copied only if it must be."""
    dtype = dtype or model.dtype
    if tensor.dtype == dtype and tensor.stride() == model.stride():
        return tensor
    return torch.empty_like(model, dtype=dtype).copy_(tensor)
