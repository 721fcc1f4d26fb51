"""Reservoir sampling (Vitter, 1985): every labelled example of the stream is equally likely to be stored."""

import torch
from torch import Generator, Tensor

from dualnet.batch import Batch
from dualnet.memory.memory import Memory, num_earlier_equal


class Reservoir(Memory):
    def place(self, batch: Batch, labelled: Tensor, generator: Generator) -> Tensor:
        number = self.seen.sum() + num_earlier_equal(torch.zeros_like(batch.task_ids), labelled)
        # float64: the 24 bits of float32 are too few for a uniform draw among millions.
        draw = torch.rand(len(batch), device=labelled.device, generator=generator, dtype=torch.float64)
        chosen = (draw * (number + 1)).long()
        slot = torch.where(number < self.num_slots, number, chosen)
        return torch.where(slot < self.num_slots, slot, self.drop)
