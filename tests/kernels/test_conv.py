"""Weights that are cast together under autocast give the numbers of a cast for each, forward and backward."""

from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dualnet.nets import Adapter, Encoder
from dualnet.nets.conv import Conv, autocast_weights

STEPS = 2


class Both(nn.Module):
    """The slow and the fast network."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = Encoder(4)
        self.fast = Adapter(self.slow.channels, 5, "none")

    def forward(self, images: Tensor, parts: int) -> list[Tensor]:
        maps = self.slow(images, parts)
        return [*maps, self.fast(images, maps, parts)]


def make() -> Both:
    torch.manual_seed(0)
    return Both().to(memory_format=torch.channels_last)


def outcome(together: bool, precision: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Outputs and gradients of steps within one autocast, whose weights change in between."""
    images = torch.randn(6, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    nets, tensors = make(), []
    casts = [patch(f"dualnet.nets.{name}.autocast_weights", lambda _: nullcontext()) for name in ("resnet", "adapter")]
    with torch.autocast("cpu", torch.bfloat16, precision == torch.bfloat16, cache_enabled=False):
        for _ in range(STEPS):
            with nullcontext() if together else casts[0], nullcontext() if together else casts[1]:
                outputs = nets(images, 2)
            grads = torch.autograd.grad(sum(out.float().square().sum() for out in outputs), list(nets.parameters()))
            tensors += [out.detach() for out in outputs] + list(grads)
            with torch.no_grad():
                for parameter, grad in zip(nets.parameters(), grads, strict=True):
                    parameter -= 0.001 * grad / grad.norm().clamp(min=1e-6)
    return tensors


def test_weights_cast_together_equal_separate_casts():
    together, each = outcome(together=True), outcome(together=False)
    assert together[0].dtype == torch.bfloat16
    for tensor, expected in zip(together, each, strict=True):
        assert tensor.dtype == expected.dtype and torch.equal(tensor, expected)


def test_bfloat16_is_near_float32_and_each_step_uses_its_own_weights():
    rounded, exact = outcome(together=True), outcome(together=True, precision=torch.float32)
    num = len(exact) // STEPS
    for tensor, expected in zip(rounded[:5], exact[:5], strict=True):
        assert 1e-4 < float((tensor - expected).norm() / expected.norm()) < 0.1
    assert not any(map(torch.equal, rounded[:5], rounded[num : num + 5]))


def test_weights_of_a_functional_call_are_cast():
    """As MIR does: the network's own weights are not used, and stay."""
    nets, images = make(), torch.randn(4, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    given = {name: 2 * parameter.detach() for name, parameter in nets.named_parameters()}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        output = functional_call(nets, given, (images, 1))[-1]
        with pytest.raises(ValueError):
            functional_call(nets, given, (images[:1, :, :1, :1], 1))
        nets.load_state_dict(given, strict=False)
        expected = nets(images, 1)[-1]
    assert torch.equal(output, expected)
    assert all(module.cast_weight is None for module in nets.modules() if isinstance(module, Conv))


def test_without_autocast_nothing_is_cast():
    conv = Conv(3, 4, 3)
    with autocast_weights(conv):
        assert conv.cast_weight is None


@pytest.mark.parametrize("fewest", [0, 8])
@pytest.mark.parametrize("channels", [8, 12])
def test_a_shortcut_of_few_channels_equals_a_strided_convolution(channels, fewest, monkeypatch):
    """In the place of a stride, which ends the process on AVX2 below 8 channels. Tried where both can run."""
    monkeypatch.setattr("dualnet.nets.conv.FEWEST_STRIDED_CHANNELS", 2 * fewest)
    shortcut = Conv(channels, 2 * channels, 1, 2, bias=False).to(memory_format=torch.channels_last)
    check_shortcut(shortcut)


@pytest.mark.parametrize("channels", range(1, 8))
def test_a_shortcut_of_few_channels_writes_to_no_other_memory(channels):
    """As it is on this processor, often enough for a write past the end of a buffer to be seen."""
    shortcut = Conv(channels, 2 * channels, 1, 2, bias=False).to(memory_format=torch.channels_last)
    for _ in range(20):
        check_shortcut(shortcut)


def check_shortcut(shortcut: Conv) -> None:
    """Its output and gradient, beside those of a product of matrices in double precision."""
    x = torch.randn(8, shortcut.in_channels, 14, 14).contiguous(memory_format=torch.channels_last)
    pixels, matrix = x[:, :, ::2, ::2].double(), shortcut.weight.detach().double()[:, :, 0, 0]
    out = shortcut(x)
    torch.testing.assert_close(out.double(), torch.einsum("bchw,oc->bohw", pixels, matrix), rtol=1e-4, atol=1e-4)
    upstream = torch.randn_like(out)
    (grad,) = torch.autograd.grad(out, shortcut.weight, upstream)
    expected = torch.einsum("bchw,bohw->oc", pixels, upstream.double())
    torch.testing.assert_close(grad[:, :, 0, 0].double(), expected, rtol=1e-4, atol=1e-3)
