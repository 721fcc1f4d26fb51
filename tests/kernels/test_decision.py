"""Where the fused kernels run and where PyTorch's own do, decided in one place; here for tensors on the CPU."""

from typing import Any

import pytest
import torch

from dualnet import image_ops, kernels
from dualnet.nets import BatchNorm
from dualnet.nets.conv import Conv, autocast_weights


@pytest.fixture
def on_cuda(monkeypatch):
    """CPU tensors count as CUDA's, of a machine with Triton."""
    monkeypatch.setattr(kernels, "available", lambda _: True)


def channels_last(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).to(memory_format=torch.channels_last)


def test_tensors_on_the_cpu_are_computed_eagerly():
    assert not kernels.available(torch.zeros(3))
    assert not kernels.can_fuse(channels_last(2, 4, 8, 8), BatchNorm(4))


@pytest.mark.parametrize(
    ("x", "fused"),
    [
        (channels_last(2, 4, 8, 8), True),
        (torch.zeros(2, 4), True),
        (torch.zeros(2, 4, 8, 8), False),  # another layout
        (torch.zeros(4, 2).T, False),
        (torch.zeros(0, 4), False),
        (torch.empty(2**29, 4, device="meta"), False),  # offsets of more than 32 bits
        (torch.empty(2**29 - 1, 4, device="meta"), True),
    ],
    ids=lambda value: str(tuple(value.shape)) if isinstance(value, torch.Tensor) else str(value),
)
def test_a_batch_norm_is_fused_on_matrices(x, fused, on_cuda):
    assert kernels.can_fuse(x, BatchNorm(4)) is fused


def test_eval_mode_is_fused_only_without_gradients(on_cuda):
    x, norm = channels_last(2, 4, 8, 8), BatchNorm(4).eval()
    assert not kernels.can_fuse(x, norm)
    with torch.no_grad():
        assert kernels.can_fuse(x, norm)


@pytest.mark.parametrize(
    ("options", "fused"),
    [
        ({}, True),
        ({"kernel_size": 5}, False),
        ({"padding": 0}, False),
        ({"stride": 2}, False),
        ({"in_channels": 1}, False),
        ({"autocast": False}, False),
        ({"needs_grad": True}, False),
        ({"size": 2500}, False),  # 32 values a pixel: more than 32-bit offsets
    ],
    ids=str,
)
def test_the_first_block_is_fused_on_images_under_autocast(options, fused, on_cuda):
    options: dict[str, Any] = {"in_channels": 3, "kernel_size": 3, "stride": 1, "padding": 1} | options
    autocast, needs_grad, size = (options.pop(*it) for it in (("autocast", True), ("needs_grad", False), ("size", 8)))
    conv = Conv(out_channels=4, **options)
    images = torch.empty(11, options["in_channels"], size, size, device="meta", requires_grad=needs_grad)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), autocast_weights(conv):
        assert kernels.can_fuse_conv(images, conv, BatchNorm(4)) is fused


def test_views_use_the_same_decision(monkeypatch):
    asked = []
    monkeypatch.setattr(kernels, "available", lambda x: bool(asked.append(x)))
    images = torch.zeros(2, 3, 28, 28, dtype=torch.uint8)
    image_ops.two_views(images, (28, 28), image_ops.ViewConfig(), torch.Generator())
    assert len(asked) == 1 and asked[0] is images
