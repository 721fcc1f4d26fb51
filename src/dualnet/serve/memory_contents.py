"""What the service's model has stored and learned, compared with the journal. Images are given by digests of pixels."""

from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from dualnet.models.memory_images import stored_examples
from dualnet.models.model import Model
from dualnet.serve.journal import Journal


def stored_digests(model: Model) -> set[bytes]:
    """The images in the memory."""
    return {digest for _, _, digest, _ in stored_examples(model.learner)}


def known_digests(model: Model) -> set[bytes]:
    """The images in the memory and in the sums of a closed-form head."""
    return stored_digests(model) | model.examples.labels.keys()


def count_stored(model: Model) -> dict[str, Any]:
    """The number of slots, and of stored examples by class."""
    memories, numbers = model.learner.memories, [*map(int, model.class_names)]
    labels = Counter(label for memory in memories for label in memory.labels[memory.filled].tolist())
    examples = {numbers[label]: count for label, count in labels.items()}
    return {"slots": sum(memory.num_slots for memory in memories), "examples": examples}


def follow(journal: Journal, model: Model, digests: Collection[bytes] | None = None) -> None:
    """Give these images, or all, the class that they have in the journal; withdraw those that it has no longer."""
    digests = known_digests(model) if digests is None else digests
    classes = set(model.class_names)  # one that is still to be added is learned with its first image
    labels = {digest: str(label) for digest, label in journal.current_labels(digests).items()}
    model.relabel({digest: label if label in classes else None for digest, label in labels.items()})


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
    learner = model.learner
    if learner.needs_boundaries(learner.config):
        for memory in learner.memories:
            memory.has_logits.zero_()
        learner.end_task()
