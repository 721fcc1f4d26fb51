"""Gradient steps: the plain one, and Look-ahead (Zhang et al., 2019), the slow learner's (equations 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer


def descend(optimizer: Optimizer, loss: Tensor, largest: float | None = None) -> None:
    """One step of the optimizer down the gradient of the loss, each number of which is at most the `largest`.

    No other weight is given a gradient: it would add to what lies there, in memory that a captured step need not own.
    """
    weights = weights_of(optimizer)
    optimizer.zero_grad()
    with torch.autocast(loss.device.type, enabled=False):  # else it rounds the gradient of what was kept in float32
        loss.backward(inputs=weights)
    if largest is not None:
        torch.nn.utils.clip_grad_value_(weights, largest)
    optimizer.step()


def weights_of(optimizer: Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


class LookAhead:
    """K steps of an inner optimizer from the current weights, then a part of the way: phi + beta (phi_K - phi).

    `tensors` are interpolated by `beta`: the inner optimizer's parameters and, if wished, BatchNorm statistics.
    `kept` are put back as they were. Whatever is in neither goes all the way: without `tensors`, a round is K plain
    steps.
    """

    def __init__(
        self,
        inner: Optimizer,
        tensors: Sequence[Tensor],
        steps: int,  # K
        beta: float,
        kept: Sequence[Tensor] = (),
    ) -> None:
        self.inner, self.steps, self.beta = inner, steps, beta
        self.tensors, self.kept = list(tensors), list(kept)

    def round(self, loss: Callable[[], Tensor]) -> Tensor:
        """One round; `loss` is computed anew for every inner step. Returns the mean of its values."""
        start, kept = copies(self.tensors), copies(self.kept)
        losses = [self.inner_step(loss()) for _ in range(self.steps)]
        self.go_part_of_the_way(start, kept)
        return torch.stack(losses).mean()

    def inner_step(self, loss: Tensor) -> Tensor:
        descend(self.inner, loss)
        return loss.detach()

    @torch.no_grad()
    def go_part_of_the_way(self, start: list[Tensor], kept: list[Tensor]) -> None:
        if start:
            torch._foreach_lerp_(start, self.tensors, self.beta)  # pyright: ignore[reportPrivateImportUsage]
        if start or kept:
            torch._foreach_copy_(self.tensors + self.kept, start + kept)  # pyright: ignore[reportPrivateImportUsage]


@torch.no_grad()
def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies in a few kernels for all tensors, where a clone of each would be one kernel each."""
    made = [torch.empty_like(tensor) for tensor in tensors]
    if made:
        torch._foreach_copy_(made, list(tensors))  # pyright: ignore[reportPrivateImportUsage]
    return made
