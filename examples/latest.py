"""A memory of the latest examples of the whole stream: a policy in a file of its own, outside of the package.

Run it: `PYTHONPATH=examples dualnet run demo-er --learner.memory.policy latest.Latest`.
"""

import torch
from torch import Generator, Tensor

from dualnet import Batch
from dualnet.memory import Memory, num_earlier_equal


class Latest(Memory):
    """First in, first out: the latest examples of all tasks together."""

    def place(self, batch: Batch, labelled: Tensor, generator: Generator) -> Tensor:
        return (self.seen.sum() + num_earlier_equal(torch.zeros_like(batch.task_ids), labelled)) % self.num_slots
