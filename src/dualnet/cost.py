"""The cost of learning, independent of the machine: the number of images that pass through the encoders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from dualnet.nets import BaseEncoder


@dataclass
class Cost:
    """Images passed through an encoder, each counted once per pass."""

    forward_samples: int = 0
    backward_samples: int = 0  # only passes whose gradient reaches the first map

    def add(self, other: Cost) -> None:
        self.forward_samples += other.forward_samples
        self.backward_samples += other.backward_samples


@contextmanager
def counted(network: nn.Module, cost: Cost) -> Iterator[None]:
    """Adds the passes through the encoders of the network to the cost, within the context.

    A backward pass is counted at the first map, which it reaches from any later one. Nothing is read from the device,
    so that a step can be captured in a CUDA graph.
    """

    def count(encoder: nn.Module, images: tuple[Tensor, ...], maps: list[Tensor]) -> None:
        cost.forward_samples += len(maps[0])
        if maps[0].requires_grad:
            maps[0].register_hook(count_backward)

    def count_backward(gradient: Tensor) -> None:
        cost.backward_samples += len(gradient)

    encoders = [module for module in network.modules() if isinstance(module, BaseEncoder)]
    hooks = [encoder.network.register_forward_hook(count) for encoder in encoders]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
