"""The base class of episodic memories. Operations within a step neither synchronise nor branch on tensor values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from dualnet.batch import UNLABELLED, Batch, StreamSpec, change_rows, describe
from dualnet.losses import MASKED

# The buffers with a row per slot, and what a row holds while its slot is empty.
EMPTY = {"images": 0, "labels": UNLABELLED, "task_ids": UNLABELLED, "logits": 0, "has_logits": False, "filled": False}
CONTENT = EMPTY.keys() - {"filled"}  # a state has only the rows of filled slots, so that it weighs what is stored


@dataclass(frozen=True, slots=True)
class Replay:
    """Examples drawn from a memory, or placeholders from the current batch while there are none to draw.

    Placeholders keep the shapes of a step fixed. They have no label and no logits, so that no loss includes them.
    """

    images: Tensor  # uint8 [size, C, H, W]
    labels: Tensor  # int64 [size]; UNLABELLED for a placeholder
    task_ids: Tensor  # int64 [size]
    logits: Tensor  # float [size, classes]: stored logits of the learner
    has_logits: Tensor  # bool [size]
    slots: Tensor  # int64 [size]: their slots; some are repeated if fewer than `size` are stored
    stored: Tensor  # bool [size]: False for a placeholder
    batch_rows: Tensor  # int64 [size]: the rows of the current batch that serve as placeholders

    def rows(self, chosen: Tensor) -> Replay:
        return Replay(*(getattr(self, field.name)[chosen] for field in fields(self)))


class Memory(nn.Module, ABC):
    """A fixed number of slots for labelled examples. They are buffers, so `.to()` and `state_dict()` include them."""

    images: Tensor  # uint8 [slots + 1, C, H, W]; dropped examples go to the last slot, which is then cleared
    labels: Tensor  # int64 [slots + 1]
    task_ids: Tensor  # int64 [slots + 1]
    logits: Tensor  # float [slots + 1, classes], or [slots + 1, 0] without logits
    has_logits: Tensor  # bool [slots + 1]
    filled: Tensor  # bool [slots + 1]
    seen: Tensor  # int64 [tasks]: labelled examples offered so far
    released: Tensor  # bool [1]: whether examples are drawn; only if `hold` was called
    is_held: bool = False  # the same on the host: a captured step depends on it

    def __init__(
        self, spec: StreamSpec, num_slots: int, only_earlier_tasks: bool = False, with_logits: bool = True
    ) -> None:
        super().__init__()
        check_slots(num_slots, spec)
        self.only_earlier_tasks, self.with_logits, self.num_classes = only_earlier_tasks, with_logits, spec.num_classes
        try:
            self.allocate(spec, num_slots + 1)
        except RuntimeError as error:
            size = (num_slots + 1) * (math.prod(spec.image_shape) + 18 + 4 * spec.num_classes * with_logits)
            needed = f"{num_slots} slots of images {list(spec.image_shape)} need {size:,} bytes of memory"
            raise ValueError(f"memory.slots: {needed}, which cannot be allocated; give fewer") from error

    def allocate(self, spec: StreamSpec, rows: int) -> None:
        self.register_buffer("images", torch.zeros(rows, *spec.image_shape, dtype=torch.uint8))
        self.register_buffer("labels", torch.full((rows,), UNLABELLED))
        self.register_buffer("task_ids", torch.full((rows,), UNLABELLED))
        self.register_buffer("logits", torch.zeros(rows, spec.num_classes if self.with_logits else 0))
        self.register_buffer("has_logits", torch.zeros(rows, dtype=torch.bool))
        self.register_buffer("filled", torch.zeros(rows, dtype=torch.bool))
        self.register_buffer("seen", torch.zeros(spec.num_tasks, dtype=torch.int64))

    @property
    def num_slots(self) -> int:
        return len(self.filled) - 1

    @property
    def drop(self) -> int:
        """The slot for examples that are not stored."""
        return self.num_slots

    @abstractmethod
    def place(self, batch: Batch, labelled: Tensor, generator: Generator) -> Tensor:
        """The policy: a slot for each example, int64 [B], or `drop`. Of two examples in one slot the later is stored.

        Examples that are not `labelled`, bool [B], are dropped in any case.
        """

    @torch.no_grad()
    def add(self, batch: Batch, generator: Generator, logits: Tensor | None = None) -> None:
        """Offer the labelled examples of a batch, optionally with the learner's logits; not those of a repeated one."""
        if batch.labels is None or batch.repeated or self.num_slots == 0:
            return
        labelled = batch.labels != UNLABELLED
        slots = torch.where(labelled, self.place(batch, labelled, generator), self.drop)
        slots = torch.where(has_later_equal(slots), self.drop, slots)  # of two, the later one is stored
        self.seen.index_add_(0, batch.task_ids, labelled.long())
        self.images[slots] = batch.images
        self.labels[slots] = batch.labels
        self.task_ids[slots] = batch.task_ids
        # `buffer[slots] = scalar` would copy from the host, which cannot be captured in a CUDA graph.
        self.has_logits.index_fill_(0, slots, logits is not None)
        self.filled.index_fill_(0, slots, True)
        if logits is not None:
            self.logits[slots] = logits.to(self.logits.dtype)
        self.clear(self.drop)  # dropped examples are written in no fixed order: the state would not be reproducible

    def hold(self) -> Self:
        """Draw nothing, not even placeholders, until `release` is called."""
        self.register_buffer("released", torch.zeros(1, dtype=torch.bool))
        self.is_held = True
        return self

    def release(self) -> None:
        if self.is_held:
            self.released.fill_(True)
            self.is_held = False

    def clear(self, slot: int) -> None:
        for name, value in EMPTY.items():
            getattr(self, name)[slot].fill_(value)

    @torch.no_grad()
    def remove(self, slots: Tensor) -> None:
        """Empty these slots, int64 [n], when a user withdraws examples. Not for use within a step."""
        for name, value in EMPTY.items():
            getattr(self, name)[slots] = value

    @torch.no_grad()
    def sample(self, size: int, generator: Generator, beside: Batch, draws: int = 1) -> Replay:
        """`size` stored examples to replay with a batch, drawn without replacement if enough are stored.

        With `only_earlier_tasks`, examples of the tasks in the batch are excluded. Several `draws` of `size` examples
        are concatenated, which takes no more kernels than a single one. A memory that is held draws none.
        """
        size = 0 if self.is_held else size
        fitting = self.filled[: self.num_slots]
        if self.only_earlier_tasks:
            stored_tasks = self.task_ids[: self.num_slots]
            fitting = fitting & ~(stored_tasks[:, None] == beside.task_ids[None, :]).any(dim=1)
        keys = torch.rand(draws, self.num_slots, device=fitting.device, generator=generator)
        first = keys.masked_fill(~fitting, -1).topk(min(size, self.num_slots)).indices
        count = fitting.sum()
        index = torch.arange(size, device=fitting.device)
        slots = first[:, index % count.clamp(1, first.shape[1])].flatten()
        stored, batch_rows = (count > 0).expand(len(slots)), index.repeat(draws) % len(beside)
        return Replay(
            torch.where(stored.view(-1, 1, 1, 1), self.images[slots], beside.images[batch_rows]),
            torch.where(stored, self.labels[slots], UNLABELLED),
            torch.where(stored, self.task_ids[slots], beside.task_ids[batch_rows]),
            self.logits[slots],
            self.has_logits[slots] & stored,
            slots,
            stored,
            batch_rows,
        )

    @torch.no_grad()
    def change_classes(self, spec: StreamSpec, removed: int | None = None) -> None:
        """Add new classes and tasks, to which stored soft labels give no probability; or remove a class."""
        if removed is not None:
            self.remove((self.labels == removed).nonzero().flatten())
            self.labels -= (self.labels > removed).long()
        if self.with_logits:
            self.logits = change_rows(self.logits.T, spec.num_classes, removed, MASKED).T.contiguous()
            self.logits[~self.filled] = 0
        self.seen = change_rows(self.seen, spec.num_tasks)
        self.num_classes = spec.num_classes

    def change_slots(self, count: int) -> None:
        """More or fewer slots at the end."""
        if count != self.num_slots:
            for name, value in EMPTY.items():
                setattr(self, name, change_rows(getattr(self, name)[:count], count + 1, value=value))

    def composition(self) -> Tensor:
        """How many examples of each task and class are stored: int64 [tasks, classes]."""
        places = (self.task_ids.clamp(min=0), self.labels.clamp(min=0))  # an empty slot has -1 and is counted as 0
        counts = self.seen.new_zeros(len(self.seen), self.num_classes)
        return counts.index_put_(places, self.filled.long(), accumulate=True)

    def without_logits(self) -> Tensor:
        """The slots of examples without logits, int64 [n]. It synchronises, so it must not be used within a step."""
        return (self.filled & ~self.has_logits).nonzero().flatten()

    @torch.no_grad()
    def set_logits(self, slots: Tensor, logits: Tensor) -> None:
        """Store the learner's logits of the examples in these slots, int64 [n]."""
        self.logits[slots] = logits.to(self.logits.dtype)
        self.has_logits[slots] = True

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination |= {prefix + name: destination[prefix + name][self.filled] for name in CONTENT}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """The memory gets as many slots as the state; with an equal number the buffers stay, for a captured step."""
        if (filled := state_dict.get(prefix + "filled")) is not None:
            names = [name for name in CONTENT if prefix + name in state_dict]
            self.check_state(filled, {name: state_dict[prefix + name] for name in names})
            self.change_slots(len(filled) - 1)
            for name in names:
                rows = state_dict[prefix + name]
                state_dict[prefix + name] = rows.new_full((len(filled), *rows.shape[1:]), EMPTY[name])
                state_dict[prefix + name][filled] = rows
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if "released" in self._buffers:
            self.is_held = not bool(self.released)

    def check_state(self, filled: Tensor, content: Mapping[str, Tensor]) -> None:
        """Raises ValueError, before anything is allocated, if the rows of a stranger's state do not fit."""
        if filled.dtype != torch.bool or filled.dim() != 1 or len(filled) == 0:
            raise ValueError(f"memory: filled is {describe(filled)}, not bool [slots + 1]")
        for name, rows in content.items():
            if rows.shape != (shape := (int(filled.sum()), *getattr(self, name).shape[1:])):
                raise ValueError(f"memory: {name} is {describe(rows)}, not {list(shape)}")
        for name, count in (("labels", self.num_classes), ("task_ids", len(self.seen))):
            if name in content and not ((content[name] >= 0) & (content[name] < count)).all():
                raise ValueError(f"memory: {name} are not from 0 to {count - 1}")


def check_slots(num_slots: int, spec: StreamSpec) -> None:
    if 0 < num_slots < spec.num_tasks:
        raise ValueError(f"memory.slots_per_class: {num_slots} slots in total are too few for {spec.num_tasks} tasks")


def num_earlier_equal(values: Tensor, counted: Tensor | None = None) -> Tensor:
    """How many earlier rows have the same value, int64 [B]; only rows that are `counted`, bool [B], if given."""
    same = values[:, None] == values[None, :]
    return (same if counted is None else same & counted[None, :]).tril(-1).sum(dim=1)


def has_later_equal(values: Tensor) -> Tensor:
    """Whether a later row has the same value, bool [B]."""
    return (values[:, None] == values[None, :]).triu(1).any(dim=1)
