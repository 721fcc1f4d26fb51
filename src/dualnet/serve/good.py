"""The last good state of a model, to go back to if an update made it worse."""

from collections.abc import Mapping
from copy import deepcopy

import torch

from dualnet.memory import Memory
from dualnet.runs.model import Model

FEWEST = 10  # held-out examples that make a fall


class Good:
    """A copy of weights, averages and optimizers. The memory is no part of it: what was taught stays there."""

    def __init__(self, model: Model, right: Mapping[tuple[int, str], bool] | None = None) -> None:
        self.right = dict(right or {})  # which held-out examples were answered right, by number and label
        self.take(model)

    def take(self, model: Model) -> None:
        learner = model.learner
        memories = tuple(f"{name}." for name, module in learner.named_modules() if isinstance(module, Memory))
        state = learner.state_dict().items()
        self.state = {
            name: value.clone() for name, value in state if name != "_extra_state" and not name.startswith(memories)
        }
        self.optimizers = deepcopy({name: one.state_dict() for name, one in learner.optimizers().items()})

    def accuracy(self) -> dict[str, float]:
        """In percent, by class."""
        by_class: dict[str, list[bool]] = {}
        for (_, name), right in self.right.items():
            by_class.setdefault(name, []).append(right)
        return {name: 100 * sum(some) / len(some) for name, some in sorted(by_class.items())}

    def fall(self, right: Mapping[tuple[int, str], bool]) -> float:
        """By how many points the accuracy is lower now, on the examples that were there then."""
        common = self.right.keys() & right.keys()
        if len(common) < FEWEST:
            return 0.0
        return 100 * sum(self.right[example] - right[example] for example in common) / len(common)

    @torch.no_grad()
    def put_back(self, model: Model) -> None:
        learner = model.learner
        learner.load_state_dict(self.state, strict=False)
        for name, optimizer in learner.optimizers().items():
            optimizer.load_state_dict(deepcopy(self.optimizers[name]))
        model.engine = None  # steps that it captured on a GPU would use the momenta of before
        for memory in learner.memories:  # soft labels that were stored by weights that had gone wrong
            wrong = ~memory.logits.isfinite().all(dim=1)
            memory.logits[wrong] = 0
            memory.has_logits[wrong] = False
