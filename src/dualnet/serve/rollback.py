"""The last known good state of a model whose weights are trained, restored when training makes the model worse."""

from copy import deepcopy

import torch

from dualnet.memory import Memory
from dualnet.models.model import Model


class RollbackPoint:
    """A copy of weights, averaged weights and optimizers. The memory is left out: a rollback keeps its examples."""

    def __init__(self, model: Model) -> None:
        learner = model.learner
        memories = tuple(f"{name}." for name, module in learner.named_modules() if isinstance(module, Memory))
        state = learner.state_dict().items()
        self.state = {
            name: value.clone() for name, value in state if name != "_extra_state" and not name.startswith(memories)
        }
        self.optimizers = deepcopy({name: optimizer.state_dict() for name, optimizer in learner.optimizers().items()})

    @torch.no_grad()
    def restore(self, model: Model) -> None:
        learner = model.learner
        learner.load_state_dict(self.state, strict=False)
        for name, optimizer in learner.optimizers().items():
            optimizer.load_state_dict(deepcopy(self.optimizers[name]))
        model.engine = None  # CUDA graphs captured before would use the old momentum buffers
        for memory in learner.memories:  # diverged weights may have stored soft labels that are not finite
            invalid = ~memory.logits.isfinite().all(dim=1)
            memory.logits[invalid] = 0
            memory.has_logits[invalid] = False
