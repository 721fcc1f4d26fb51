"""The examples that a model's memory holds, known by the digest of their pixels."""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from dualnet.memory import Memory
from dualnet.runs.model import Model
from dualnet.serve.journal import digest_of


def remembered(model: Model) -> Iterator[tuple[Memory, int, bytes, str]]:
    """Memory, slot, digest and class of every stored example."""
    for memory in model.learner.memories:
        for slot in memory.filled.nonzero().flatten().tolist():
            name = model.class_names[int(memory.labels[slot])]
            yield memory, slot, digest_of(memory.images[slot].cpu().numpy().tobytes()), name


def forget(model: Model, digests: Collection[bytes]) -> None:
    found = [(memory, slot) for memory, slot, digest, _ in remembered(model) if digest in digests]
    for memory in {memory for memory, _ in found}:
        slots = [slot for owner, slot in found if owner is memory]
        memory.remove(torch.tensor(slots, device=memory.filled.device))


def some_remembered(model: Model, count: int) -> Tensor | None:
    """Images, uint8 [count, C, H, W], drawn with replacement; None: there are none."""
    for memory in model.learner.memories:
        if len(filled := memory.filled.nonzero().flatten()) > 0:
            return memory.images[filled[torch.randint(len(filled), (count,))]]
    return None
