"""The last known good state of a model whose weights are trained, restored when training makes the model worse."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch

from dualnet.memory import Memory
from dualnet.models.model import Model
from dualnet.serve.images import to_tensor
from dualnet.serve.serving_model import predict

MIN_EXAMPLES = 10  # held-out examples needed to measure a drop in accuracy

Results = Mapping[tuple[int, int], bool]  # whether held-out examples are classified correctly, by number and class


def held_out_results(model: Model, examples: Sequence[tuple[int, int, bytes]]) -> Results:
    """`examples` are number, class and pixels."""
    known = [example for example in examples if str(example[1]) in model.class_names]
    if not known:
        return {}
    predictions = predict(model, to_tensor([pixels for *_, pixels in known]), top=1)
    return {
        (number, label): prediction.name == str(label)
        for (number, label, _), prediction in zip(known, predictions, strict=True)
    }


def accuracies(results: Results) -> dict[int, float]:
    """In percent, by class."""
    by_class = defaultdict[int, list[bool]](list)
    for (_, label), is_correct in results.items():
        by_class[label].append(is_correct)
    return {label: 100 * sum(correct) / len(correct) for label, correct in by_class.items()}


def accuracy_drop(before: Results, after: Results) -> float:
    """Percentage points lost on the examples measured both times; 0 if these are too few."""
    common = before.keys() & after.keys()
    if len(common) < MIN_EXAMPLES:
        return 0.0
    return 100 * sum(before[example] - after[example] for example in common) / len(common)


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
