"""The base class of all learners: learns from a stream one batch at a time, predicts at any time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from dualnet import image_ops, losses
from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.learners.ema import EMA
from dualnet.learners.input_check import InputCheck
from dualnet.learners.one_thread import OneThread
from dualnet.memory import Memory, MemoryConfig, Replay, check_slots
from dualnet.nets import SMALLEST_IMAGE, forward_batches
from dualnet.optim import grow_momenta, optimize_too

SOFT_LABEL_BATCH = 250  # stored examples in one pass at the end of a task


class Learner(nn.Module, ABC):
    """Abstract. A learner has a frozen dataclass `Config` and the constructor `(spec, config)`.

    Subclasses implement `forward` and `learn`. `learn` is plain PyTorch without a host synchronisation or a branch on
    a tensor, so that the engine can replay it. All randomness comes from `self.generator`, which is in `state_dict()`.

    A learner is not thread-safe: while one thread is in `observe`, `logits` or `predict`, another one is refused with
    a RuntimeError. Several threads must take turns, by a lock of their own.
    """

    Config: ClassVar[type]
    class_mask: Tensor  # bool [tasks, classes]
    added: list[tuple[int, int | None]]  # what `add_classes` was given, in order

    def __init__(self, spec: StreamSpec, config: Any) -> None:
        super().__init__()
        self.check(spec, config)
        self.spec, self.config = spec, config
        self.initial_spec, self.added = spec, []
        self.register_buffer("class_mask", spec.class_mask.clone(), persistent=False)
        self.generator = torch.Generator()
        self.input_check, self.one_thread = InputCheck(spec), OneThread()
        rate = getattr(config, "ema_rate", 0.0)
        self.ema = EMA(rate) if rate else None

    # What a learner says before it is built

    @classmethod
    def check(cls, spec: StreamSpec, config: Any) -> None:
        """Raises ValueError if these options cannot learn this stream. One with more conditions extends it."""
        if min(spec.network_size) < SMALLEST_IMAGE:
            raise ValueError(f"images of {spec.network_size} pixels are too small: the networks need {SMALLEST_IMAGE}")
        channels, memory = spec.image_shape[0], getattr(config, "memory", None)
        if channels not in (1, 3):
            raise ValueError(f"images of {channels} channels: the networks take grey images (1) or colour images (3)")
        for option in ("augment", "augment_replay"):
            if getattr(config, option, "none") == "views" and channels != 3:
                raise ValueError(f"{option}: views need 3 channels, and these images have {channels}; use crop")
        if isinstance(memory, MemoryConfig):
            check_slots(memory.num_slots(spec), spec)

    @classmethod
    def needs_boundaries(cls, config: Any) -> bool:
        """Whether these options need `end_task` to be called."""
        return False

    @classmethod
    def epochs_over_all(cls, config: Any) -> int:
        """The epochs over all tasks mixed together; 0: one pass over one task after the other, as a stream."""
        return 0

    # Learning

    @final
    def observe(self, batch: Batch) -> dict[str, Tensor]:
        """Check a batch, then learn from it. Returns the losses, left on the device."""
        self.check_batch(batch)
        with self.one_thread:
            return self.step(batch)

    @final
    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from a batch that has been checked; the average of the weights follows. What the engine captures."""
        losses = self.learn(batch)
        if self.ema is not None:
            self.ema.update(self)
        return losses

    @final
    def check_batch(self, batch: Batch) -> None:
        """Raises ValueError, in one line, for a batch that does not match the spec."""
        self.input_check.batch(batch, self.class_mask.device)

    @abstractmethod
    def learn(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from a batch that matches the spec. Returns the losses, detached and left on the device."""

    def end_task(self) -> None:
        """Called after each task, if the stream has boundaries."""

    def optimizers(self) -> dict[str, Optimizer]:
        """What a checkpoint holds beside `state_dict()`: `optimizer` as "net", `fast_optimizer` as "fast"."""
        found = {name: value for name, value in vars(self).items() if isinstance(value, Optimizer)}
        return {name.removesuffix("optimizer").rstrip("_") or "net": value for name, value in found.items()}

    @property
    def memories(self) -> list[Memory]:
        """The episodic memories among its modules."""
        return [module for module in self.modules() if isinstance(module, Memory)]

    # Predicting

    @abstractmethod
    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        """Logits [B, classes] of stored images; with task ids, MASKED for the classes outside of the task."""

    @final
    @torch.no_grad()
    def logits(self, images: Tensor, task_ids: Tensor | None = None) -> Tensor:
        """Logits, float32 [B, classes], in eval mode; changes nothing. images: uint8 [B, C, H, W] of any size.

        With the option `ema_rate`, they are those of the averaged weights.
        """
        self.input_check.query(images, task_ids, self.class_mask.device)
        means = {} if self.ema is None else self.ema.means()
        with self.one_thread, self.eval_mode():
            return functional_call(self, means, (images, task_ids)) if means else self(images, task_ids)

    @final
    def predict(self, images: Tensor, task_ids: Tensor | None = None) -> Tensor:
        """The class of each image, int64 [B]; with task ids, one of the classes of its task."""
        return self.logits(images, task_ids).argmax(dim=1)

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        was_training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(was_training)

    # Classes that come later

    @final
    def add_classes(self, count: int, task: int | None = None) -> None:
        """Make room for new classes, numbered from `spec.num_classes` on; the logits of the others stay, bit by bit.

        They belong to that task, else to the only one, else to a new one. A learner that holds tensors over classes or
        tasks beside its modules extends `grow`; a module that does has a `grow(spec)`, which returns its new weights.
        """
        spec = self.spec.with_classes(count, task)
        self.check(spec, self.config)
        with self.one_thread, torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=self.generator, device=self.generator.device)))
            shapes = {weight: weight.shape for weight in self.parameters()}
            self.grow(spec)
            for module in [module for module in self.modules() if module not in (self, self.ema)]:
                grow: Any = getattr(module, "grow", None)
                if grow is not None:
                    optimize_too(grow(spec), module, self.optimizers().values())
            grow_momenta(shapes, self.optimizers().values())
            if self.ema is not None:
                self.ema.grow(self)
        self.added.append((int(count), None if task is None else int(task)))

    def grow(self, spec: StreamSpec) -> None:
        """Take over the spec of more classes."""
        self.spec, self.input_check = spec, InputCheck(spec)
        self.class_mask = spec.class_mask.to(self.class_mask.device)

    # Parts of `learn`, `forward` and `end_task`

    def network_input(self, images: Tensor) -> Tensor:
        return image_ops.network_input(images, self.spec.network_size)

    def training_input(self, images: Tensor, replayed: bool = False) -> Tensor:
        """The same for learning from labels, drawn anew at every call if there is an option `augment` that says so."""
        of_replay = getattr(self.config, "augment_replay", "same") if replayed else "same"
        augment: Any = getattr(self.config, "augment", "none") if of_replay == "same" else of_replay
        area = getattr(self.config, "crop_area", image_ops.CROP_AREA)
        return image_ops.augmented_input(images, self.spec.network_size, augment, self.generator, area)

    def outputs(self, net: Callable[..., Tensor], *batches: Batch | Replay) -> list[Tensor]:
        """The training input of each batch through `net(pixels, parts)`, normalised by BatchNorm statistics of its own.

        With the option `joint_statistics` all batches are normalised as one.
        """
        pixels = [self.training_input(batch.images, isinstance(batch, Replay)) for batch in batches]
        return forward_batches(net, pixels, getattr(self.config, "joint_statistics", False))

    def batch_logits(self, net: Callable[..., Tensor], *batches: Batch | Replay) -> list[Tensor]:
        """The masked logits of each batch: of the batch to learn, and of what is replayed beside it."""
        outputs = zip(self.outputs(net, *batches), batches, strict=True)
        return [self.mask_logits(logits, batch.task_ids) for logits, batch in outputs]

    def labels_to_learn(self, batch: Batch) -> Tensor | None:
        """The batch's labels; if it has none: None, or UNLABELLED for all with the option `unlabelled: replay`."""
        replays = getattr(self.config, "unlabelled", "skip") == "replay" and self.spec.num_classes > 0
        if batch.labels is None and replays:
            return torch.full_like(batch.task_ids, UNLABELLED)
        return batch.labels

    def mask_logits(self, logits: Tensor, task_ids: Tensor | None) -> Tensor:
        """The logits, float32, with the classes outside of each example's task masked."""
        return logits.float() if task_ids is None else losses.mask_logits(logits, self.class_mask[task_ids])

    def store_soft_labels(self, memory: Memory) -> None:
        """Store the current logits of the examples that have none. For the end of a task, not for a step."""
        with self.one_thread:
            for slots in memory.without_logits().split(SOFT_LABEL_BATCH):
                if len(slots) > 0:  # an empty tensor is split into one empty part
                    memory.set_logits(slots, self.logits(memory.images[slots], memory.task_ids[slots]))

    # State

    def seed(self, seed: int) -> Self:
        self.generator.manual_seed(seed)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """`.to(device)` moves the generator too: random numbers are drawn where the tensors are."""
        super()._apply(fn, recurse)
        if self.class_mask.device != self.generator.device:
            self.generator = torch.Generator(self.class_mask.device).manual_seed(self.generator.initial_seed())
        return self

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())
