"""Weights that are cast together under autocast give the numbers of a cast for each, forward and backward."""

from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dualnet.kernels.conv import Conv, autocast_weights
from dualnet.nets import Adapter, Encoder

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
    nets, found = make(), []
    casts = [patch(f"dualnet.nets.{name}.autocast_weights", lambda _: nullcontext()) for name in ("encoder", "adapter")]
    with torch.autocast("cpu", torch.bfloat16, precision == torch.bfloat16, cache_enabled=False):
        for _ in range(STEPS):
            with nullcontext() if together else casts[0], nullcontext() if together else casts[1]:
                outputs = nets(images, 2)
            grads = torch.autograd.grad(sum(out.float().square().sum() for out in outputs), list(nets.parameters()))
            found += [out.detach() for out in outputs] + list(grads)
            with torch.no_grad():
                for parameter, grad in zip(nets.parameters(), grads, strict=True):
                    parameter -= 0.001 * grad / grad.norm().clamp(min=1e-6)
    return found


def test_weights_cast_together_give_the_numbers_of_a_cast_for_each():
    together, each = outcome(together=True), outcome(together=False)
    assert together[0].dtype == torch.bfloat16
    for one, other in zip(together, each, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


def test_bfloat16_is_near_float32_and_each_step_uses_its_own_weights():
    rounded, exact = outcome(together=True), outcome(together=True, precision=torch.float32)
    num = len(exact) // STEPS
    for one, other in zip(rounded[:5], exact[:5], strict=True):
        assert 1e-4 < float((one - other).norm() / other.norm()) < 0.1
    assert not any(torch.equal(one, other) for one, other in zip(rounded[:5], rounded[num : num + 5], strict=True))


def test_weights_that_are_given_for_a_call_are_the_ones_that_are_cast():
    """As MIR does: the network's own weights are not used, and stay."""
    nets, images = make(), torch.randn(4, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    given = {name: 2 * parameter.detach() for name, parameter in nets.named_parameters()}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        found = functional_call(nets, given, (images, 1))[-1]
        with pytest.raises(ValueError):
            functional_call(nets, given, (images[:1, :, :1, :1], 1))
        nets.load_state_dict(given, strict=False)
        expected = nets(images, 1)[-1]
    assert torch.equal(found, expected)
    assert all(module.cast_weight is None for module in nets.modules() if isinstance(module, Conv))


def test_without_autocast_nothing_is_cast():
    conv = Conv(3, 4, 3)
    with autocast_weights(conv):
        assert conv.cast_weight is None
