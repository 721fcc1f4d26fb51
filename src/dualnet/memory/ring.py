"""Ring buffer (Lopez-Paz and Ranzato, 2017): first in, first out, with an equal share of the slots per task."""

from __future__ import annotations

from torch import Generator, Tensor

from dualnet.batch import Batch
from dualnet.memory.memory import Memory, rank_among


class Ring(Memory):
    def place(self, batch: Batch, labelled: Tensor, generator: Generator) -> Tensor:
        task_ids = batch.task_ids
        share = self.num_slots // len(self.seen)
        rank = rank_among(labelled, task_ids[:, None] == task_ids[None, :])
        return task_ids * share + (self.seen[task_ids] + rank) % share
