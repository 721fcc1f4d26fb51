"""Class-balancing reservoir sampling (Chrysakis and Moens, 2020): an equal share of the slots per class seen so far.

While slots are free, every example is stored. After that, a class of which all examples are stored, and which is not a
largest one, adds its new example in the place of a random example of the largest class (the lowest numbered, if there
are several). Within any other class the policy is a reservoir: all its examples are equally likely to be stored.
"""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from dualnet.batch import Batch, StreamSpec
from dualnet.memory.memory import Memory, num_earlier_equal


class Balanced(Memory):
    offered: Tensor  # int64 [classes]: labelled examples offered so far

    def __init__(
        self, spec: StreamSpec, num_slots: int, only_earlier_tasks: bool = False, with_logits: bool = True
    ) -> None:
        super().__init__(spec, num_slots, only_earlier_tasks, with_logits)
        self.register_buffer("offered", torch.zeros(spec.num_classes, dtype=torch.int64))

    def grow(self, spec: StreamSpec) -> None:
        super().grow(spec)
        self.offered = F.pad(self.offered, (0, spec.num_classes - len(self.offered)))

    def place(self, batch: Batch, labelled: Tensor, generator: Generator) -> Tensor:
        assert batch.labels is not None
        labels = batch.labels.masked_fill(~labelled, 0)
        earlier = self.offered[labels] + num_earlier_equal(labels, labelled)
        self.offered.index_add_(0, labels, labelled.long())
        slots = self.filled.sum() + labelled.cumsum(0) - 1  # the next free slot; num_slots or more: none is free
        replaces = labelled & (slots >= self.num_slots)
        slots = torch.where(labelled, slots, self.drop)
        # float64: the 24 bits of float32 are too few for a uniform draw among millions.
        draws = torch.rand(len(batch), device=labelled.device, generator=generator, dtype=torch.float64)
        classes = self.labels.clone()
        stored = torch.zeros_like(self.offered).index_add_(0, classes.clamp(min=0), self.filled.long())
        columns = (slots, labels, labelled, replaces, earlier, draws)
        for row in zip(*(column[:, None] for column in columns), strict=True):
            self.place_one(classes, stored, *row)
        return slots

    @torch.no_grad()
    def remove(self, slots: Tensor) -> None:
        """As if these examples had never been offered. The others move up, since the free slots are the last ones."""
        self.offered.index_add_(0, self.labels[slots], torch.ones_like(slots), alpha=-1)
        super().remove(slots)
        order = (~self.filled).to(torch.uint8).argsort(stable=True)
        for buffer in (self.images, self.labels, self.task_ids, self.logits, self.has_logits, self.filled):
            buffer.copy_(buffer[order])

    def place_one(
        self,
        classes: Tensor,  # int64 [slots + 1]: of the example in each slot; updated
        stored: Tensor,  # int64 [classes]: how many examples are stored; updated
        slot: Tensor,  # int64 [1]: set to the slot of the example that is replaced, if any
        label: Tensor,
        labelled: Tensor,
        replaces: Tensor,  # bool [1]: no slot is free
        earlier: Tensor,  # int64 [1]: how many examples of the class were offered before
        draw: Tensor,  # float [1], in [0, 1)
    ) -> None:
        own = stored[label]
        most, largest = stored.max(0, keepdim=True)
        adds = (own == earlier) & (own < most)
        loser = torch.where(adds, largest, label)
        # The slot of the n-th example of `loser`, n = draw * among. If there is none, it is num_slots, that is `drop`.
        among = torch.where(adds, most, earlier + 1)
        rank = (classes[: self.num_slots] == loser).cumsum(0)
        slot.copy_(torch.where(replaces, (rank <= draw * among).sum(), slot))
        classes.scatter_(0, slot, label)
        stored.index_add_(0, loser, replaces.long(), alpha=-1).index_add_(0, label, labelled.long())
