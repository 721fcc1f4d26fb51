"""Reservoir sampling (Vitter, 1985): every labelled example of the stream is equally likely to be held."""

import torch
from torch import Generator, Tensor

from dualnet.batch import Batch
from dualnet.memory.memory import Memory, num_before


class Reservoir(Memory):
    def place(self, batch: Batch, labelled: Tensor, generator: Generator) -> Tensor:
        number = self.seen.sum() + num_before(torch.zeros_like(batch.task_ids), labelled)
        # Doubles: a float has 24 bits, too few for a fair draw among millions.
        draw = torch.rand(len(batch), device=labelled.device, generator=generator, dtype=torch.float64)
        chosen = (draw * (number + 1)).long()
        slot = torch.where(number < self.num_slots, number, chosen)
        return torch.where(slot < self.num_slots, slot, self.drop)
