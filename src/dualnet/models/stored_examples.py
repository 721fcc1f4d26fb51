"""The examples in a model's memory, identified by the digest of their pixels."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import torch

from dualnet.memory import Memory
from dualnet.models.held_out import pixel_digest
from dualnet.models.model import Model


def stored_examples(model: Model) -> Iterator[tuple[Memory, int, bytes, str]]:
    """Memory, slot, digest and class of every stored example."""
    for memory in model.learner.memories:
        for slot in memory.filled.nonzero().flatten().tolist():
            name = model.class_names[int(memory.labels[slot])]
            yield memory, slot, pixel_digest(memory.images[slot].cpu().numpy().tobytes()), name


def remove_stored(model: Model, is_outdated: Callable[[Memory, bytes, str], bool]) -> None:
    """Remove the examples for which `is_outdated`, called for each in the order of slots, is true."""
    slots = defaultdict[Memory, list[int]](list)
    for memory, slot, digest, name in stored_examples(model):
        if is_outdated(memory, digest, name):
            slots[memory].append(slot)
    for memory, outdated in slots.items():
        memory.remove(torch.tensor(outdated, device=memory.filled.device))


def remove_duplicates(model: Model) -> None:
    """Of several examples with the same pixels and class the first one stays."""
    counts = Counter[tuple[Memory, bytes, str]]()

    def is_again(memory: Memory, digest: bytes, name: str) -> bool:
        counts[memory, digest, name] += 1
        return counts[memory, digest, name] > 1

    remove_stored(model, is_again)
