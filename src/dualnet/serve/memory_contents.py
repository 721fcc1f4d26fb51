"""The examples in the memory of the service's model: their numbers, and those that the journal no longer has."""

from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from dualnet.memory import Memory
from dualnet.models.model import Model
from dualnet.models.stored_examples import remove_stored, stored_examples
from dualnet.serve.journal import Journal


def digests(model: Model) -> set[bytes]:
    return {digest for _, _, digest, _ in stored_examples(model)}


def counts(model: Model) -> dict[str, Any]:
    """The number of slots, and of stored examples by class."""
    memories = model.learner.memories
    stored = Counter(number for memory in memories for number in memory.labels[memory.filled].tolist())
    examples = {model.class_names[number]: count for number, count in sorted(stored.items())}
    return {"slots": sum(memory.num_slots for memory in memories), "examples": examples}


def remove_outdated(model: Model, journal: Journal, position: int, digests: Collection[bytes] | None = None) -> None:
    """Remove stored examples that the journal no longer has, with that label, before a position.

    `digests` limits this to some images. Of several examples with the same pixels, as many stay as the journal has.
    """
    found = Counter[tuple[Memory, bytes, str]]()

    def is_outdated(memory: Memory, digest: bytes, name: str) -> bool:
        found[memory, digest, name] += 1
        expected = journal.learned_labels(digest, position) if digests is None or digest in digests else None
        return expected is not None and found[memory, digest, name] > expected[name]

    remove_stored(model, is_outdated)


def sample_images(model: Model, count: int) -> Tensor | None:
    """Stored images, uint8 [count, C, H, W], drawn with replacement; None if the memory is empty."""
    for memory in model.learner.memories:
        if len(filled := memory.filled.nonzero().flatten()) > 0:
            return memory.images[filled[torch.randint(len(filled), (count,))]]
    return None


def refresh_soft_labels(model: Model) -> None:
    """Replace the soft labels of all stored examples by the current predictions, before new classes are learned.

    Only for learners that compute soft labels at the end of a task.
    """
    if model.learner.needs_boundaries(model.learner.config):
        for memory in model.learner.memories:
            memory.has_logits.zero_()
        model.learner.end_task()
