"""Ring buffer (Lopez-Paz and Ranzato, 2017): first in, first out, with an equal share of the slots per task."""

from __future__ import annotations

from torch import Generator, Tensor

from dualnet.batch import StreamSpec
from dualnet.memory.memory import Memory, rank_among


class Ring(Memory):
    def __init__(self, spec: StreamSpec, num_slots: int, only_earlier_tasks: bool = False) -> None:
        super().__init__(spec, num_slots, only_earlier_tasks)
        self.share = num_slots // spec.num_tasks

    def place(self, task_ids: Tensor, labelled: Tensor, generator: Generator) -> Tensor:
        rank = rank_among(labelled, task_ids[:, None] == task_ids[None, :])
        return task_ids * self.share + (self.seen[task_ids] + rank) % self.share
