"""An exponential moving average (EMA) of a learner's weights, used for prediction instead of the weights themselves."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dualnet.batch import change_rows
from dualnet.memory import Memory
from dualnet.nets import ClosedForm
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
        self.register_load_state_dict_pre_hook(self.match_names)

    @torch.no_grad()
    def update(self, learner: nn.Module) -> None:
        values = dict(prediction_tensors(learner))
        if not self.means():
            for name, value in values.items():
                self.register_buffer(name.replace(".", "/"), value.clone())
        means = self.means()
        for name, mean in means.items():
            if mean.stride() != values[name].stride():  # the kernel below needs the memory format of the values
                mean.data = torch.empty_like(values[name]).copy_(mean)
        rate = (WARM_UP / (WARM_UP + self.steps)).clamp(min=self.rate)
        # One kernel for all tensors that reads the rate from the device, as no `_foreach` operation does: a maximising
        # SGD step with the gradient `value` and weight decay 1 is mean + rate (value - mean).
        torch._fused_sgd_(  # pyright: ignore[reportPrivateImportUsage]
            [means[name] for name in values], [*values.values()], [], lr=rate, weight_decay=1.0, maximize=True,
            momentum=0.0, dampening=0.0, nesterov=False, is_first_step=False,
        )  # fmt: skip
        self.steps += 1

    def means(self) -> dict[str, Tensor]:
        """The averages by the names of their weights; empty before the first step."""
        return {name.replace("/", "."): mean for name, mean in self.named_buffers() if name != "steps"}

    @torch.no_grad()
    def change_rows(self, learner: nn.Module, removed: int | None) -> None:
        """After a change of classes: the average of a removed row goes, those of new rows start with their values."""
        values = dict(prediction_tensors(learner))
        for name, mean in self.means().items():
            if mean.shape != (value := values[name]).shape:
                kept = change_rows(mean, len(mean) - (removed is not None), removed)
                mean.data = torch.cat([kept, value[len(kept) :]])

    def check_fits(self, learner: nn.Module) -> None:
        """Raises ValueError unless there is an average for each weight, or none yet: the state may be a stranger's."""
        shapes = {name: mean.shape for name, mean in self.means().items()}
        if shapes and shapes != {name: value.shape for name, value in prediction_tensors(learner)}:
            raise ValueError("its averaged weights are not those of the learner")

    def match_names(self, _: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Before a state is loaded: a buffer for each of its averages. Those that a captured step refers to stay."""
        names = [key.removeprefix(prefix) for key in state_dict if key.startswith(prefix)]
        for name in self._buffers.keys() - {*names, "steps"}:
            del self._buffers[name]
        for name in [name for name in names if name not in self._buffers]:
            mean = torch.empty_like(state_dict[prefix + name], device=self.steps.device)
            # The memory format of the weights, since a prediction may come before a step.
            self.register_buffer(name, mean.to(memory_format=torch.channels_last) if mean.dim() == 4 else mean)


def prediction_tensors(learner: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights and BatchNorm statistics used for prediction, by name."""
    yield from learner.named_parameters(recurse=False)
    for part, module in learner.named_children():
        if not isinstance(module, Memory | Objective | EMA | ClosedForm):
            yield from module.named_parameters(prefix=part)
            yield from (
                (name, buffer) for name, buffer in module.named_buffers(prefix=part) if buffer.is_floating_point()
            )
