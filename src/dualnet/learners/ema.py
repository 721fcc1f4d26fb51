"""An exponential moving average (EMA) of a learner's weights, which predicts while the weights themselves learn."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dualnet.memory import Memory
from dualnet.objectives import Objective

WARM_UP = 4  # the rate is at least WARM_UP / (WARM_UP + steps): an average over about the last fifth of the steps


class EMA(nn.Module):
    """mean <- mean + rate (value - mean), after every step, for all weights and BatchNorm statistics that predict.

    The averages are buffers, made at the first step, so that `.to()` and `state_dict()` include them. The name of one
    is that of its value, with slashes for dots.
    """

    steps: Tensor  # float []

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("steps", torch.zeros(()))
        self.register_load_state_dict_pre_hook(self.make_means)

    @torch.no_grad()
    def update(self, learner: nn.Module) -> None:
        values = dict(predicting(learner))
        known = self.means()
        for name in [name for name in values if name not in known]:
            self.register_buffer(name.replace(".", "/"), values[name].clone())
        means = self.means_like(values)
        rate = (WARM_UP / (WARM_UP + self.steps)).clamp(min=self.rate)
        # One multi-tensor kernel that reads the rate on the device, as `_foreach_lerp_` cannot: a step of SGD with
        # weight decay 1 up the gradient `value` is mean - rate (mean - value).
        torch._fused_sgd_(  # pyright: ignore[reportPrivateImportUsage]
            list(means.values()), list(values.values()), [], lr=rate, weight_decay=1.0, maximize=True,
            momentum=0.0, dampening=0.0, nesterov=False, is_first_step=False,
        )  # fmt: skip
        self.steps += 1

    def means(self) -> dict[str, Tensor]:
        """By the names of their values; none before the first step."""
        return {name.replace("/", "."): mean for name, mean in self.named_buffers() if name != "steps"}

    @torch.no_grad()
    def grow(self, learner: nn.Module) -> None:
        """New rows of a weight begin with their own values; a new weight does at the next step."""
        means = self.means()
        for name, value in predicting(learner):
            if name in means and len(means[name]) < len(value):
                means[name].data = torch.cat([means[name], value[len(means[name]) :]])

    def means_like(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """The averages in the order and in the memory format of their values, which the kernel takes for granted."""
        means = self.means()
        for name, mean in means.items():
            if mean.stride() != values[name].stride():
                mean.data = torch.empty_like(values[name]).copy_(mean)
        return {name: means[name] for name in values}

    def make_means(self, _: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Before a state is loaded: the averages that it holds, and no others. A captured step keeps its tensors."""
        known = self._buffers.copy()
        self._buffers.clear()
        self._buffers["steps"] = known["steps"]
        for key in [key for key in state_dict if key.startswith(prefix) and key != f"{prefix}steps"]:
            name, new = key.removeprefix(prefix), state_dict[key]
            old = known.get(name)
            if old is None or old.shape != new.shape:
                old = torch.empty_like(new, device=self.steps.device)
                if old.dim() == 4:  # as the weights are: they may predict before the next step
                    old = old.to(memory_format=torch.channels_last)
            self.register_buffer(name, old)


def predicting(learner: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights and BatchNorm statistics that a prediction needs, by name."""
    yield from learner.named_parameters(recurse=False)
    for part, module in learner.named_children():
        if not isinstance(module, Memory | Objective | EMA):
            yield from module.named_parameters(prefix=part)
            yield from (
                (name, buffer) for name, buffer in module.named_buffers(prefix=part) if buffer.is_floating_point()
            )
