"""Gradient steps, Look-ahead (Zhang et al., 2019; equations 3 and 4), and momenta of networks whose classes change."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dualnet.batch import change_rows


def unwrapped(method: Any) -> Any:
    """A method of PyTorch's optimizers without its decorator; the method itself if it has none."""
    return getattr(method, "__wrapped__", method)


class SGD(torch.optim.SGD):
    """PyTorch's SGD without the decorators that import torch._dynamo, which takes 1.6 s at the start of a process."""

    add_param_group = unwrapped(torch.optim.SGD.add_param_group)
    state_dict = unwrapped(torch.optim.SGD.state_dict)
    load_state_dict = unwrapped(torch.optim.SGD.load_state_dict)
    zero_grad = unwrapped(torch.optim.SGD.zero_grad)
    step = torch.no_grad()(unwrapped(torch.optim.SGD.step))


def gradient_step(
    optimizer: Optimizer, loss: Tensor, clip_value: float | None = None, keep_graph: bool = False
) -> None:
    """One step of the optimizer, with each element of the gradient clipped to `clip_value` if given.

    Only the optimizer's parameters get a gradient: others would accumulate in memory that a captured step may not own.
    With `keep_graph` the loss can be differentiated again after the step, although the weights have changed: the second
    backward pass combines the activations of the old weights with the new weights.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.zero_grad()
    with torch.autocast(loss.device.type, enabled=False):  # it would round the gradients of float32 operations
        loss.backward(inputs=parameters, retain_graph=keep_graph)
    if clip_value is not None:
        torch.nn.utils.clip_grad_value_(parameters, clip_value)
    changed = tuple(parameters) if keep_graph else ()  # autograd would refuse a backward pass with changed weights
    with torch.autograd.grad_mode._unsafe_preserve_version_counter(changed):
        optimizer.step()


def look_ahead(
    inner: Optimizer, loss: Callable[[], Tensor], steps: int, beta: float, tensors: list[Tensor], kept: list[Tensor]
) -> Tensor:
    """K `steps` of the inner optimizer from the weights phi, then phi + beta (phi_K - phi). Returns the mean loss.

    `tensors` are interpolated: the parameters of the inner optimizer and optionally BatchNorm statistics. `kept` are
    restored. All others keep their values of the last inner step, so that without `tensors` these are K plain steps.
    """
    start, kept_values, losses = copy_tensors(tensors), copy_tensors(kept), []
    for _ in range(steps):
        value = loss()
        gradient_step(inner, value)
        losses.append(value.detach())
    with torch.no_grad():
        if tensors:
            torch._foreach_lerp_(start, tensors, beta)  # pyright: ignore[reportPrivateImportUsage]
        if tensors or kept:
            torch._foreach_copy_(tensors + kept, start + kept_values)  # pyright: ignore[reportPrivateImportUsage]
    return torch.stack(losses).mean()


@torch.no_grad()
def copy_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of all tensors by a few kernels, where `clone` needs one kernel per tensor."""
    copies = [torch.empty_like(tensor) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))  # pyright: ignore[reportPrivateImportUsage]
    return copies


def change_optimizer_rows(
    shapes: dict[nn.Parameter, torch.Size], removed: int | None, optimizers: Collection[Optimizer]
) -> None:
    """The momenta of parameters that had other shapes follow their rows: those of new rows are 0. Gradients go."""
    for weight, shape in shapes.items():
        if weight.shape == shape:
            continue
        weight.grad = None
        for state in [optimizer.state.get(weight, {}) for optimizer in optimizers]:
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == shape:
                    state[key] = change_rows(value, len(weight), removed)
