"""Gradient steps: the plain one, and Look-ahead (Zhang et al., 2019), the slow learner's (equations 3 and 4)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer


def gradient_step(optimizer: Optimizer, loss: Tensor, clip_value: float | None = None) -> None:
    """One step of the optimizer, with each element of the gradient clipped to `clip_value` if given.

    Only the optimizer's parameters get a gradient: any other would be accumulated in memory that a captured step
    need not own.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.zero_grad()
    with torch.autocast(loss.device.type, enabled=False):  # else it rounds the gradient of what was kept in float32
        loss.backward(inputs=parameters)
    if clip_value is not None:
        torch.nn.utils.clip_grad_value_(parameters, clip_value)
    optimizer.step()


class LookAhead:
    """K steps of an inner optimizer from the weights phi, then an interpolation: phi + beta (phi_K - phi).

    `tensors` are interpolated: the inner optimizer's parameters and, if wanted, BatchNorm statistics. `kept` are
    restored. All other tensors keep the values of the last inner step: without `tensors`, a round is K plain steps.
    """

    def __init__(
        self, inner: Optimizer, tensors: Sequence[Tensor], steps: int, beta: float, kept: Sequence[Tensor] = ()
    ) -> None:
        self.inner, self.steps, self.beta = inner, steps, beta  # steps: K
        self.tensors, self.kept = list(tensors), list(kept)

    def round(self, loss: Callable[[], Tensor]) -> Tensor:
        """One round; `loss` is computed anew for every inner step. Returns the mean of its values."""
        start, kept, losses = copies(self.tensors), copies(self.kept), []
        for _ in range(self.steps):
            now = loss()
            gradient_step(self.inner, now)
            losses.append(now.detach())
        self.interpolate(start, kept)
        return torch.stack(losses).mean()

    @torch.no_grad()
    def interpolate(self, start: list[Tensor], kept: list[Tensor]) -> None:
        if start:
            torch._foreach_lerp_(start, self.tensors, self.beta)  # pyright: ignore[reportPrivateImportUsage]
        if start or kept:
            torch._foreach_copy_(self.tensors + self.kept, start + kept)  # pyright: ignore[reportPrivateImportUsage]


@torch.no_grad()
def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of all tensors in a few kernels, where `clone` takes one kernel each."""
    made = [torch.empty_like(tensor) for tensor in tensors]
    if made:
        torch._foreach_copy_(made, list(tensors))  # pyright: ignore[reportPrivateImportUsage]
    return made
