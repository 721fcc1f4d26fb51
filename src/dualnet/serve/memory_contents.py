"""The examples in the memory of the service's model, identified by the digests of their pixels."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualnet.memory import Memory
from dualnet.models.held_out import pixel_digest
from dualnet.models.model import Model
from dualnet.serve.journal import Journal


class MemoryContents:
    """The digests by slot are kept. One is looked up or computed again only if the pixels in the slot have changed."""

    def __init__(self, model: Model) -> None:
        self.model, self.memories = model, model.learner.memories
        self.pixels = [np.zeros_like(pixels_by_slot(memory)) for memory in self.memories]  # as of the last update
        black = bytes(math.prod(model.learner.spec.image_shape))  # as an empty slot
        self.black = {black: pixel_digest(black)}
        self.digest_lists = [[self.black[black]] * len(pixels) for pixels in self.pixels]
        self.learned: dict[bytes, bytes] = {}  # the digests of images learned since then, by their pixels

    def update(self) -> None:
        for memory, pixels, digests in zip(self.memories, self.pixels, self.digest_lists, strict=True):
            current = pixels_by_slot(memory)
            changed = (current != pixels).any(axis=1).nonzero()[0].tolist()
            moved = {pixels[slot].tobytes(): digests[slot] for slot in changed}
            known = self.black | self.learned | moved
            pixels[changed] = current[changed]
            for slot in changed:
                image = pixels[slot].tobytes()
                digests[slot] = known.get(image) or pixel_digest(image)
        self.learned = {}

    def stored(self) -> Iterator[tuple[Memory, int, bytes, int]]:
        """Memory, slot, digest and class of every stored example."""
        self.update()
        numbers = [*map(int, self.model.class_names)]
        for memory, digests in zip(self.memories, self.digest_lists, strict=True):
            for slot in memory.filled.nonzero().flatten().tolist():
                yield memory, slot, digests[slot], numbers[int(memory.labels[slot])]

    def digests(self) -> set[bytes]:
        return {digest for _, _, digest, _ in self.stored()}

    def counts(self) -> dict[str, Any]:
        """The number of slots, and of stored examples by class."""
        labels = Counter(label for memory in self.memories for label in memory.labels[memory.filled].tolist())
        numbers = [*map(int, self.model.class_names)]
        examples = {numbers[label]: count for label, count in labels.items()}
        return {"slots": sum(memory.num_slots for memory in self.memories), "examples": examples}

    def remove_outdated(self, journal: Journal, position: int) -> None:
        """Remove stored examples that the journal no longer has, with that label, before a position.

        Of several examples with the same pixels, as many stay as the journal has.
        """
        counts = Counter[tuple[Memory, bytes, int]]()
        outdated: dict[Memory, list[int]] = {memory: [] for memory in self.memories}
        for memory, slot, digest, label in self.stored():
            counts[memory, digest, label] += 1
            expected = journal.learned_labels(digest, position)
            if expected is not None and counts[memory, digest, label] > expected[label]:
                outdated[memory].append(slot)
        for memory, slots in outdated.items():
            memory.remove(torch.tensor(slots, dtype=torch.int64, device=memory.filled.device))

    def sample_images(self, count: int) -> Tensor | None:
        """Stored images, uint8 [count, C, H, W], drawn with replacement; None if the memory is empty."""
        for memory in self.memories:
            if len(filled := memory.filled.nonzero().flatten()) > 0:
                return memory.images[filled[torch.randint(len(filled), (count,))]]
        return None

    def refresh_soft_labels(self) -> None:
        """Replace the soft labels of all stored examples by the current predictions, before new classes are learned.

        Only for learners that compute soft labels at the end of a task.
        """
        learner = self.model.learner
        if learner.needs_boundaries(learner.config):
            for memory in self.memories:
                memory.has_logits.zero_()
            learner.end_task()


def pixels_by_slot(memory: Memory) -> np.ndarray:
    return memory.images.flatten(1).cpu().numpy()
