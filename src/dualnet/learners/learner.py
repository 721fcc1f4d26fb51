"""What every learner keeps to: it learns from a stream one batch at a time and answers at any time."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dualnet import image_ops
from dualnet.batch import Batch, StreamSpec
from dualnet.learners.batch_check import BatchCheck
from dualnet.losses import MASKED as MASKED  # learners find it here
from dualnet.losses import restricted
from dualnet.memory import Memory
from dualnet.nets import SMALLEST_IMAGE

ANSWER_SIZE = 250  # stored examples that are answered in one pass at the end of a task


class Learner(nn.Module, ABC):
    """Abstract. A learner is a final class with a frozen dataclass `Config` and the constructor `(spec, config)`.

    `observe` is plain PyTorch without a host synchronisation or a branch on a tensor, so that the engine can replay
    it. All randomness comes from `self.generator`, which travels with `state_dict()`. Whoever writes an `observe`, it
    is not reached by a batch that `check_batch` refuses.
    """

    Config: ClassVar[type]
    class_mask: Tensor  # bool [tasks, classes]

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if cls.observe is not Learner.observe and not hasattr(cls.observe, "checks_batches"):
            cls.observe = of_checked_batches(cls.observe)

    def __init__(self, spec: StreamSpec, config: Any) -> None:
        super().__init__()
        if min(spec.network_size) < SMALLEST_IMAGE:
            raise ValueError(f"images of {spec.network_size} pixels are too small: the networks need {SMALLEST_IMAGE}")
        if getattr(config, "augment", "none") == "views" and spec.image_shape[0] != 3:
            raise ValueError(
                f"augment: views need colour, and these images have {spec.image_shape[0]} channels; use crop"
            )
        self.spec, self.config = spec, config
        self.register_buffer("class_mask", spec.class_mask.clone(), persistent=False)
        self.generator = torch.Generator()
        self.batch_check = BatchCheck(spec)

    @abstractmethod
    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        """Logits [B, classes] for stored images; with task ids, MASKED for the classes outside of the task."""

    @abstractmethod
    def observe(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from a batch. Returns the losses, left on the device."""

    def check_batch(self, batch: Batch) -> None:
        """Raises ValueError, in one line, for a batch that does not fit the spec."""
        self.batch_check(batch, self.class_mask.device)

    @abstractmethod
    def optimizers(self) -> dict[str, Optimizer]:
        """What a checkpoint must hold beside `state_dict()`."""

    def end_task(self) -> None:
        """Called after each task, only where the stream tells its boundaries."""

    @property
    def needs_boundaries(self) -> bool:
        """Whether it would miss something in a stream that never calls `end_task`."""
        return False

    @property
    def epochs_over_all(self) -> int:
        """How often it wants to go over all tasks mixed together, instead of once over one task after the other."""
        return 0

    @property
    def memories(self) -> list[Memory]:
        """Its episodic memories, found among its parts."""
        return [part for part in self.modules() if isinstance(part, Memory)]

    @torch.no_grad()
    def answer(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        """The logits outside of learning: by the running BatchNorm statistics, and nothing is moved."""
        was_training = self.training
        self.eval()
        try:
            return self(images, task_ids)
        finally:
            self.train(was_training)

    def remember_answers(self, memory: Memory) -> None:
        """Store what it answers now to the examples that have no answer yet. For the end of a task, not for a step."""
        for slots in memory.without_logits().split(ANSWER_SIZE):
            if len(slots) > 0:  # nothing is split into one part of nothing
                memory.remember(slots, self.answer(memory.images[slots], memory.task_ids[slots]))

    def network_input(self, images: Tensor) -> Tensor:
        return image_ops.network_input(images, self.spec.network_size)

    def training_input(self, images: Tensor) -> Tensor:
        """The same for learning from labels, drawn anew at every call if the option `augment` says so."""
        return image_ops.augmented_input(images, self.spec.network_size, self.config.augment, self.generator)

    def restricted(self, logits: Tensor, task_ids: Tensor | None) -> Tensor:
        """The logits, float32, with the classes outside of each example's task masked."""
        if task_ids is None:
            return logits.float()
        return restricted(logits, self.class_mask[task_ids])

    def seed(self, seed: int) -> Self:
        self.generator.manual_seed(seed)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """`.to(device)` takes the generator along: draws happen where the tensors are."""
        super()._apply(fn, recurse)
        if self.class_mask.device != self.generator.device:
            self.generator = torch.Generator(self.class_mask.device).manual_seed(self.generator.initial_seed())
        return self

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())


def of_checked_batches(observe: Any) -> Any:
    """The same `observe`, with nothing moved by a batch that is refused: one in the memory would spoil all to come."""

    @functools.wraps(observe)
    def checked(learner: Learner, batch: Batch) -> dict[str, Tensor]:
        learner.check_batch(batch)
        return observe(learner, batch)

    checked.checks_batches = True  # pyright: ignore[reportAttributeAccessIssue]
    return checked
