"""The examples that a model's memory holds, known by the digest of their pixels."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dualnet.memory import Memory
from dualnet.runs.model import Model
from dualnet.serve.journal import Journal, digest_of


def remembered(model: Model) -> Iterator[tuple[Memory, int, bytes, str]]:
    """Memory, slot, digest and class of every stored example."""
    for memory in model.learner.memories:
        for slot in memory.filled.nonzero().flatten().tolist():
            name = model.class_names[int(memory.labels[slot])]
            yield memory, slot, digest_of(memory.images[slot].cpu().numpy().tobytes()), name


def counts(model: Model) -> dict[str, Any]:
    """Slots of the memory, and examples of each class in it."""
    memories = model.learner.memories
    stored = Counter(number for memory in memories for number in memory.labels[memory.filled].tolist())
    examples = {model.class_names[number]: count for number, count in sorted(stored.items())}
    return {"slots": sum(memory.num_slots for memory in memories), "examples": examples}


def forget(model: Model, journal: Journal, position: int, digests: Sequence[bytes] | None = None) -> None:
    """Take out what the journal does not have any more at a position, of these pixels or of all.

    Two examples may have the same pixels: if one of them goes, the other one stays.
    """
    wanted, kept = journal.in_memory(position, digests), Counter[tuple[Memory, bytes, str]]()
    unwanted: dict[Memory, list[int]] = {}
    for memory, slot, digest, name in remembered(model):
        kept[memory, digest, name] += 1
        if digest in wanted and kept[memory, digest, name] > wanted[digest][name]:
            unwanted.setdefault(memory, []).append(slot)
    for memory, slots in unwanted.items():
        memory.remove(torch.tensor(slots, device=memory.filled.device))


def some_remembered(model: Model, count: int) -> Tensor | None:
    """Images, uint8 [count, C, H, W], drawn with replacement; None: there are none."""
    for memory in model.learner.memories:
        if len(filled := memory.filled.nonzero().flatten()) > 0:
            return memory.images[filled[torch.randint(len(filled), (count,))]]
    return None


def renew_soft_labels(model: Model) -> None:
    """Of all that is stored, what the model says of it now: to keep that while new classes are learned.

    Only a learner that takes soft labels at the end of a task has any use for it.
    """
    if model.learner.needs_boundaries(model.learner.config):
        for memory in model.learner.memories:
            memory.has_logits.zero_()
        model.learner.end_task()
