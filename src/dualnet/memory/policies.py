"""The policies of episodic memories: which slot each example of a batch gets."""

import torch
from torch import Generator, Tensor

from dualnet.batch import Batch, StreamSpec, change_rows
from dualnet.memory.memory import EMPTY, Memory, num_earlier_equal


class Ring(Memory):
    """First in, first out, with an equal share of the slots per task (Lopez-Paz and Ranzato, 2017)."""

    @property
    def share(self) -> int:
        return self.num_slots // len(self.seen)

    def change_classes(self, spec: StreamSpec, removed: int | None = None) -> None:
        """Each new task gets as many slots as every existing one."""
        self.change_slots(self.num_slots + self.share * (spec.num_tasks - len(self.seen)))
        super().change_classes(spec, removed)

    def place(self, batch: Batch, labelled: Tensor, generator: Generator) -> Tensor:
        task_ids, share = batch.task_ids, self.share
        return task_ids * share + (self.seen[task_ids] + num_earlier_equal(task_ids, labelled)) % share


class Reservoir(Memory):
    """Every labelled example of the stream is equally likely to be stored (Vitter, 1985)."""

    def place(self, batch: Batch, labelled: Tensor, generator: Generator) -> Tensor:
        number = self.seen.sum() + num_earlier_equal(torch.zeros_like(batch.task_ids), labelled)
        # float64: the 24 bits of float32 are too few for a uniform draw among millions.
        draw = torch.rand(len(batch), device=labelled.device, generator=generator, dtype=torch.float64)
        chosen = (draw * (number + 1)).long()
        slot = torch.where(number < self.num_slots, number, chosen)
        return torch.where(slot < self.num_slots, slot, self.drop)


class Balanced(Memory):
    """Class-balancing reservoir sampling (Chrysakis and Moens, 2020): an equal share of the slots per class so far.

    While slots are free, every example is stored. After that, a class of which all examples are stored, and which is
    not a largest one, adds its new example in the place of a random example of the largest class (the lowest numbered,
    if there are several). Within any other class the policy is a reservoir: all its examples are equally likely to be
    stored.
    """

    offered: Tensor  # int64 [classes]: labelled examples offered so far

    def allocate(self, spec: StreamSpec, rows: int) -> None:
        super().allocate(spec, rows)
        self.register_buffer("offered", torch.zeros(spec.num_classes, dtype=torch.int64))

    def change_classes(self, spec: StreamSpec, removed: int | None = None) -> None:
        super().change_classes(spec, removed)
        self.offered = change_rows(self.offered, spec.num_classes, removed)

    def place(self, batch: Batch, labelled: Tensor, generator: Generator) -> Tensor:
        assert batch.labels is not None
        labels = batch.labels.masked_fill(~labelled, 0)
        offered = self.offered[labels] + num_earlier_equal(labels, labelled)  # of the class, before each example
        self.offered.index_add_(0, labels, labelled.long())
        free = self.filled.sum() + labelled.cumsum(0) - 1  # the next free slot; num_slots or more: none is free
        # float64: the 24 bits of float32 are too few for a uniform draw among millions.
        draws = torch.rand(len(batch), device=labelled.device, generator=generator, dtype=torch.float64)
        classes = self.labels.clone()  # in each slot
        stored = torch.zeros_like(self.offered).index_add_(0, classes.clamp(min=0), self.filled.long())  # by class
        slots = torch.where(labelled, free, self.drop)
        for number in range(len(batch)):  # one by one: each is placed among those before it
            at = slice(number, number + 1)  # tensors of one element, which index without synchronising
            label, slot, replaces = labels[at], slots[at], labelled[at] & (free[at] >= self.num_slots)
            loser, among = losing_class(label, offered[at], stored)
            # The slot of the n-th example of `loser`, n = draw * among. If there is none, it is num_slots: `drop`.
            rank = (classes[: self.num_slots] == loser).cumsum(0)
            slot.copy_(torch.where(replaces, (rank <= draws[at] * among).sum(), slot))  # a view of `slots`
            classes.scatter_(0, slot, label)
            stored.index_add_(0, loser, replaces.long(), alpha=-1).index_add_(0, label, labelled[at].long())
        return slots

    @torch.no_grad()
    def remove(self, slots: Tensor) -> None:
        """As if these examples had never been offered. The others move up, since the free slots are the last ones."""
        self.offered.index_add_(0, self.labels[slots], torch.ones_like(slots), alpha=-1)
        super().remove(slots)
        order = (~self.filled).to(torch.uint8).argsort(stable=True)
        for name in EMPTY:
            buffer = getattr(self, name)
            buffer.copy_(buffer[order])


def losing_class(label: Tensor, offered: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
    """The class of which an example gives way to a new one, and the number of examples among which it is drawn.

    A class that is stored whole and is not a largest one grows at the cost of a largest one; among all of that. Any
    other keeps its size: its new example competes with those offered before.
    """
    own, (most, largest) = stored[label], stored.max(0, keepdim=True)
    grows = (own == offered) & (own < most)
    return torch.where(grows, largest, label), torch.where(grows, most, offered + 1)
