"""Launch parameters of kernels: the work per program, the grid of programs, and the layout of the inputs."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

CHANNELS_AT_A_TIME = 32


class LaunchShape(NamedTuple):
    """Rows per loop iteration of a program, its warps, the number of programs that fill an H200, pipeline stages."""

    rows: int
    warps: int
    programs: int
    stages: int = 1  # more than 1: a loop of matrix products prefetches its operands


SUMMING = LaunchShape(256, 16, 66)  # few and large, because every program of the second kernel reads all sums
WRITING = LaunchShape(64, 4, 528)  # with more, five concurrent learners are slower, since programs take time to start


class LaunchGrid:
    """The split of a matrix [parts, rows, channels]: each program has `chunk` rows of a part and some channels."""

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


def match_layout(tensor: Tensor, model: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor in the layout of `model` and in the given dtype (default: that of `model`), copied only if needed."""
    dtype = dtype or model.dtype
    if tensor.dtype == dtype and tensor.stride() == model.stride():
        return tensor
    return torch.empty_like(model, dtype=dtype).copy_(tensor)
