"""An exponential moving average (EMA) of a learner's weights, used for prediction instead of the weights themselves."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dualnet.memory import Memory
from dualnet.objectives import Objective

WARM_UP = 4  # the rate is at least WARM_UP / (WARM_UP + steps), an average over about the last fifth of the steps


class EMA(nn.Module):
    """mean <- mean + rate (value - mean), after every step, for all weights and BatchNorm statistics used to predict.

    The averages are buffers, created at the first step, so that `.to()` and `state_dict()` include them. Each has the
    name of its weight, with slashes instead of dots.
    """

    steps: Tensor  # float []

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("steps", torch.zeros(()))
        self.register_load_state_dict_pre_hook(self.allocate_means)

    @torch.no_grad()
    def update(self, learner: nn.Module) -> None:
        values = dict(prediction_tensors(learner))
        known = self.means()
        for name in [name for name in values if name not in known]:
            self.register_buffer(name.replace(".", "/"), values[name].clone())
        means = self.means()
        for name, mean in means.items():
            if mean.stride() != values[name].stride():  # the fused kernel needs the memory format of the values
                mean.data = torch.empty_like(values[name]).copy_(mean)
        rate = (WARM_UP / (WARM_UP + self.steps)).clamp(min=self.rate)
        # A single multi-tensor kernel that reads the rate from the device, which `_foreach_lerp_` cannot do: a
        # maximising SGD step with the gradient `value` and weight decay 1 is mean - rate (mean - value).
        torch._fused_sgd_(  # pyright: ignore[reportPrivateImportUsage]
            [means[name] for name in values], [*values.values()], [], lr=rate, weight_decay=1.0, maximize=True,
            momentum=0.0, dampening=0.0, nesterov=False, is_first_step=False,
        )  # fmt: skip
        self.steps += 1

    def means(self) -> dict[str, Tensor]:
        """The averages by the names of their weights; empty before the first step."""
        return {name.replace("/", "."): mean for name, mean in self.named_buffers() if name != "steps"}

    @torch.no_grad()
    def grow(self, learner: nn.Module) -> None:
        """The averages of new rows start with their values. Those of new weights are created at the next step."""
        means = self.means()
        for name, value in prediction_tensors(learner):
            if name in means and len(means[name]) < len(value):
                means[name].data = torch.cat([means[name], value[len(means[name]) :]])

    def allocate_means(self, _: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Before a state is loaded: a buffer for each of its averages, reusing those that a captured step refers to."""
        known = self._buffers.copy()
        self._buffers.clear()
        self._buffers["steps"] = known["steps"]
        for key in [key for key in state_dict if key.startswith(prefix) and key != f"{prefix}steps"]:
            name, new = key.removeprefix(prefix), state_dict[key]
            old = known.get(name)
            if old is None or old.shape != new.shape:
                old = torch.empty_like(new, device=self.steps.device)
                if old.dim() == 4:  # the memory format of the weights, since a prediction may come before a step
                    old = old.to(memory_format=torch.channels_last)
            self.register_buffer(name, old)


def prediction_tensors(learner: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights and BatchNorm statistics used for prediction, by name."""
    yield from learner.named_parameters(recurse=False)
    for part, module in learner.named_children():
        if not isinstance(module, Memory | Objective | EMA):
            yield from module.named_parameters(prefix=part)
            yield from (
                (name, buffer) for name, buffer in module.named_buffers(prefix=part) if buffer.is_floating_point()
            )
