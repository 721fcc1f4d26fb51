"""The episodic memory: what every policy shares. Nothing here waits for the device or branches on a tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from dualnet.batch import UNLABELLED, Batch, StreamSpec


@dataclass(frozen=True, slots=True)
class Replay:
    """Examples drawn from a memory."""

    batch: Batch
    logits: Tensor  # float [size, classes]: what a learner answered when it stored them
    has_logits: Tensor  # bool [size]
    slots: Tensor  # int64 [size]: where they lie; one may come several times while few are stored
    stored: Tensor  # bool [size]: False where nothing fitting is stored yet and the batch shows a stand-in
    stand_ins: Tensor  # int64 [size]: which example of the batch beside it that is


class Memory(nn.Module, ABC):
    """A fixed number of slots for labelled examples. Tensors are buffers: `.to()` and `state_dict()` need no code."""

    images: Tensor  # uint8 [slots + 1, C, H, W]; the last slot takes what is dropped, and stays zero
    labels: Tensor  # int64 [slots + 1]
    task_ids: Tensor  # int64 [slots + 1]
    logits: Tensor  # float [slots + 1, classes], or [slots + 1, 0] where no learner asks for them
    has_logits: Tensor  # bool [slots + 1]
    filled: Tensor  # bool [slots + 1]
    seen: Tensor  # int64 [tasks]: labelled examples offered so far

    def __init__(
        self, spec: StreamSpec, num_slots: int, only_earlier_tasks: bool = False, with_logits: bool = True
    ) -> None:
        super().__init__()
        if num_slots < spec.num_tasks:
            raise ValueError(f"a memory of {num_slots} slots is too small for {spec.num_tasks} tasks: give it more")
        self.num_slots, self.only_earlier_tasks = num_slots, only_earlier_tasks
        self.num_classes = spec.num_classes
        self.register_buffer("images", torch.zeros(num_slots + 1, *spec.image_shape, dtype=torch.uint8))
        self.register_buffer("labels", torch.full((num_slots + 1,), UNLABELLED))
        self.register_buffer("task_ids", torch.full((num_slots + 1,), UNLABELLED))
        self.register_buffer("logits", torch.zeros(num_slots + 1, spec.num_classes if with_logits else 0))
        self.register_buffer("has_logits", torch.zeros(num_slots + 1, dtype=torch.bool))
        self.register_buffer("filled", torch.zeros(num_slots + 1, dtype=torch.bool))
        self.register_buffer("seen", torch.zeros(spec.num_tasks, dtype=torch.int64))

    @property
    def drop(self) -> int:
        """The slot of an example that is not kept."""
        return self.num_slots

    @abstractmethod
    def place(self, batch: Batch, labelled: Tensor, generator: Generator) -> Tensor:
        """The policy: a slot per example, int64 [B], or `drop`. Two examples may name one slot: the later one stays.

        `labelled`, bool [B], says which examples count: the others are dropped whatever the policy says.
        """

    @torch.no_grad()
    def add(self, batch: Batch, generator: Generator, logits: Tensor | None = None) -> None:
        """Offer the labelled examples of a batch, with the learner's answers if they are to be remembered."""
        if batch.labels is None:
            return
        labelled = batch.labels != UNLABELLED
        slots = torch.where(labelled, self.place(batch, labelled, generator), self.drop)
        later_wins = (slots[:, None] == slots[None, :]).triu(1).any(dim=1)
        slots = torch.where(later_wins, self.drop, slots)
        self.seen.index_add_(0, batch.task_ids, labelled.long())
        self.images[slots] = batch.images
        self.labels[slots] = batch.labels
        self.task_ids[slots] = batch.task_ids
        # Filled, not assigned: a scalar put in by indexing is copied from the host, which cannot be captured.
        self.has_logits.index_fill_(0, slots, logits is not None)
        self.filled.index_fill_(0, slots, True)
        if logits is not None:
            self.logits[slots] = logits.to(self.logits.dtype)
        self.clear_dropped()

    def clear_dropped(self) -> None:
        """Several dropped examples write one slot in no fixed order; a zero keeps the state the same bit by bit."""
        for buffer in (self.images, self.logits, self.has_logits, self.filled):
            buffer[self.drop].zero_()
        for buffer in (self.labels, self.task_ids):
            buffer[self.drop].fill_(UNLABELLED)

    @torch.no_grad()
    def sample(self, size: int, generator: Generator, beside: Batch, draws: int = 1) -> Replay:
        """`size` stored examples to learn beside a batch, without replacement when enough are stored.

        Those of the batch's own tasks are left out if only earlier ones are to be replayed. While nothing fitting is
        stored, examples of the batch take the places, marked as not stored: shapes never change. Several `draws` of
        the same memory lie one behind the other: a step that needs more than one takes them in as many kernels as one.
        """
        fitting = self.filled[: self.num_slots]
        if self.only_earlier_tasks:
            stored_tasks = self.task_ids[: self.num_slots]
            fitting = fitting & ~(stored_tasks[:, None] == beside.task_ids[None, :]).any(dim=1)
        keys = torch.rand(draws, self.num_slots, device=fitting.device, generator=generator)
        first = keys.masked_fill(~fitting, -1).topk(min(size, self.num_slots)).indices
        count = fitting.sum()
        turn = torch.arange(size, device=fitting.device)
        rows = first[:, turn % count.clamp(1, first.shape[1])].flatten()
        return self.replay(rows, (count > 0).expand(len(rows)), beside, turn.repeat(draws) % len(beside))

    def replay(self, rows: Tensor, stored: Tensor, beside: Batch, stand_ins: Tensor) -> Replay:
        batch = Batch(
            torch.where(stored.view(-1, 1, 1, 1), self.images[rows], beside.images[stand_ins]),
            torch.where(stored, self.labels[rows], UNLABELLED),
            torch.where(stored, self.task_ids[rows], beside.task_ids[stand_ins]),
        )
        return Replay(batch, self.logits[rows], self.has_logits[rows] & stored, rows, stored, stand_ins)

    def composition(self) -> Tensor:
        """How many examples of each task and class are stored: int64 [tasks, classes]."""
        places = (self.task_ids.clamp(min=0), self.labels.clamp(min=0))  # an empty slot has -1, and counts 0
        counts = self.seen.new_zeros(len(self.seen), self.num_classes)
        return counts.index_put_(places, self.filled.long(), accumulate=True)

    def without_logits(self) -> Tensor:
        """Slots whose example has no answer yet, int64 [n]. Waits for the device: for the end of a task, not a step."""
        return (self.filled & ~self.has_logits).nonzero().flatten()

    @torch.no_grad()
    def remember(self, slots: Tensor, logits: Tensor) -> None:
        """Store the learner's answers to the examples in these slots."""
        self.logits[slots] = logits.to(self.logits.dtype)
        self.has_logits[slots] = True


def rank_among(member: Tensor, same: Tensor) -> Tensor:
    """How many earlier members of the batch are the `same`: int64 [B] from bool [B] and bool [B, B]."""
    return (same & member[None, :]).tril(-1).sum(dim=1)
