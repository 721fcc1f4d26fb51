"""Gradient steps, Look-ahead (Zhang et al., 2019; equations 3 and 4), and optimizers whose weights become more."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
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


def optimize_too(new: Iterable[nn.Parameter], module: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Add new weights of a module to the optimizers of its other ones, to the group of one with as many dimensions.

    Weights and biases may have groups of their own.
    """
    new, known = list(new), set(module.parameters())
    for optimizer in optimizers:
        groups = [group for group in optimizer.param_groups if known & set(group["params"])]
        for weight in new if groups else []:
            alike = (group for group in groups if weight.dim() in {w.dim() for w in known & set(group["params"])})
            next(alike, groups[0])["params"].append(weight)


def grow_momenta(shapes: dict[nn.Parameter, torch.Size], optimizers: Iterable[Optimizer]) -> None:
    """Weights whose shape was another one have more rows: so have their momenta, and no gradient is left."""
    optimizers = list(optimizers)
    for weight, shape in shapes.items():
        if weight.shape == shape:
            continue
        weight.grad = None
        for state in [optimizer.state.get(weight, {}) for optimizer in optimizers]:
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == shape:
                    state[key] = torch.cat([value, value.new_zeros(len(weight) - len(value), *shape[1:])])
