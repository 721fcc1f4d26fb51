"""The examples in a learner's memory, identified by the digest of their pixels."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import torch

from dualnet.learners import Learner
from dualnet.memory import Memory
from dualnet.models.held_out import pixel_digest


def stored_examples(learner: Learner) -> Iterator[tuple[Memory, int, bytes, int]]:
    """Memory, slot, digest and class of every stored example."""
    for memory in learner.memories:
        slots = memory.filled.nonzero().flatten()
        images, labels = memory.images[slots].cpu().numpy(), memory.labels[slots].tolist()
        for slot, image, label in zip(slots.tolist(), images, labels, strict=True):
            yield memory, slot, pixel_digest(image.tobytes()), label


def remove_stored(learner: Learner, is_outdated: Callable[[Memory, bytes, int], bool]) -> None:
    """Remove the examples for which `is_outdated`, called for each in the order of slots, is true."""
    slots = defaultdict[Memory, list[int]](list)
    for memory, slot, digest, label in stored_examples(learner):
        if is_outdated(memory, digest, label):
            slots[memory].append(slot)
    for memory, outdated in slots.items():
        memory.remove(torch.tensor(outdated, device=memory.filled.device))
    learner.has_changed()


def remove_duplicates(learner: Learner) -> None:
    """Of several examples with the same pixels and class the first one stays."""
    counts = Counter[tuple[Memory, bytes, int]]()

    def is_again(memory: Memory, digest: bytes, label: int) -> bool:
        counts[memory, digest, label] += 1
        return counts[memory, digest, label] > 1

    remove_stored(learner, is_again)
