"""The base class of all learners, which learn from a stream one batch at a time and can predict at any time."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
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
from dualnet.learners.memory_head import MemoryHead
from dualnet.learners.shared_options import CommonOptions, MemoryOptions, ReplayOptions, Statistics
from dualnet.memory import Memory, Replay, check_slots, memory_class
from dualnet.nets import SMALLEST_IMAGE, BaseEncoder, ClosedForm, forward_batches, pooled_features
from dualnet.optim import change_optimizer_rows

SOFT_LABEL_BATCH = 250  # stored examples per forward pass at the end of a task
NORMALISED_BATCH = 64  # the same where BatchNorm uses the statistics of these examples; as in the authors' code
TEACHER_TEMPERATURE = 2.0
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # the buffers of BatchNorm


class Learner(nn.Module, ABC):
    """Abstract. A learner has a frozen dataclass `Config` and the constructor `(spec, config)`.

    Subclasses implement `forward` and `learn`. `learn` is plain PyTorch code that neither synchronises with the host
    nor branches on the value of a tensor, so that the engine can replay it. All random numbers come from
    `self.generator`, whose state is part of `state_dict()`.

    A learner is not thread-safe: while one thread is in `observe`, `logits` or `predict`, calls from other threads
    raise RuntimeError. Callers with several threads need a lock.
    """

    Config: ClassVar[type]
    capturable: bool = True  # whether `learn` can be replayed as a CUDA graph; False: it runs eagerly
    class_mask: Tensor  # bool [tasks, classes]

    def __init__(self, spec: StreamSpec, config: Any) -> None:
        super().__init__()
        self.check(spec, config)
        self.spec, self.config = spec, config
        self.register_buffer("class_mask", spec.class_mask.clone(), persistent=False)
        self.generator = torch.Generator()
        self.input_check, self.thread_guard = InputCheck(spec), ThreadGuard()
        self.ema = EMA(config.ema_rate) if config.ema_rate else None
        self.memory_head = None
        if isinstance(config, ReplayOptions) and config.answer not in ("heads", "last"):
            self.memory_head = MemoryHead(config.answer, config.answer_levels, config.answer_mirrored)

    # Known before a learner is constructed

    @classmethod
    def check(cls, spec: StreamSpec, config: Any) -> None:
        """Raises ValueError if a learner with these options cannot learn this stream. Subclasses may add conditions."""
        if min(spec.network_size) < SMALLEST_IMAGE:
            raise ValueError(f"images of {spec.network_size} pixels are too small: the networks need {SMALLEST_IMAGE}")
        channels = spec.image_shape[0]
        if channels not in (1, 3):
            raise ValueError(f"images of {channels} channels: the networks accept grey images (1) or colour images (3)")
        for name in ("augment", "augment_replay"):
            if getattr(config, name, None) == "views" and channels != 3:
                raise ValueError(f"{name}: views need 3 channels, and these images have {channels}; use crop")
        if isinstance(config, MemoryOptions):
            memory_class(config.memory.policy_for(spec))
            check_slots(config.memory.num_slots(spec), spec)
            if config.memory.slots == 0 and cls.needs_memory(config):
                raise ValueError(
                    "memory.slots: 0 is for learners that do not need their examples again; give 1 or more"
                )

    @classmethod
    def needs_boundaries(cls, config: Any) -> bool:
        """Whether these options need `end_task` to be called. Subclasses may add conditions."""
        return isinstance(config, MemoryOptions) and config.memory.replay_from == "second_task"

    @classmethod
    def needs_memory(cls, config: Any) -> bool:
        """Whether it learns again from the examples in its memory."""
        return isinstance(config, MemoryOptions)

    @classmethod
    def learns_unlabelled(cls, config: Any) -> bool:
        """Whether it learns when a batch has no label at all; by default only by updates on replay."""
        return replays_unlabelled(config)

    @classmethod
    def epochs_over_all(cls, config: Any) -> int:
        """The number of epochs over the data of all tasks together; 0: one pass over one task after another."""
        return 0

    # Learning

    @final
    def observe(self, batch: Batch) -> dict[str, Tensor]:
        """Check a batch, then learn from it. Returns the losses, left on the device."""
        self.check_batch(batch)
        with self.thread_guard:
            return self.step(batch)

    @final
    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from a batch of the right form, then update the averaged weights. The engine captures this."""
        self.has_changed()
        losses = self.learn(batch)
        if not are_losses(losses):
            name, what = type(self).__name__, "losses by name, each a detached scalar tensor"
            raise TypeError(f"{name}.learn returned {losses!r}, not {what}; see CONTRIBUTING.md")
        if self.ema is not None:
            self.ema.update(self)
        return losses

    def has_changed(self) -> None:
        """Called where weights or memory change, also by a replayed step, which runs no other Python."""
        if self.memory_head is not None:
            self.memory_head.forget()

    @final
    def check_batch(self, batch: Batch) -> None:
        """Raises ValueError, with a one-line message, for a batch that does not match the spec."""
        self.input_check.check_batch(batch, self.class_mask.device)

    @abstractmethod
    def learn(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from a batch that matches the spec. Returns the losses, detached and left on the device."""

    def end_task(self) -> None:
        """Called after each task if the stream has task boundaries. Subclasses extend it."""
        for memory in self.memories:
            memory.release()

    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizers by their names in a checkpoint: `optimizer` is "net", `fast_optimizer` is "fast"."""
        attributes = {name: value for name, value in vars(self).items() if isinstance(value, Optimizer)}
        return {name.removesuffix("optimizer").rstrip("_") or "net": value for name, value in attributes.items()}

    @property
    def memories(self) -> list[Memory]:
        """All episodic memories among the submodules."""
        return [module for module in self.modules() if isinstance(module, Memory)]

    @property
    def closed_form(self) -> ClosedForm | None:
        """The closed-form head, if the learner has one."""
        return next((module for module in self.modules() if isinstance(module, ClosedForm)), None)

    # Predicting

    @abstractmethod
    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        """Logits [B, classes] of uint8 images; with task ids, MASKED for the classes of other tasks."""

    @final
    @torch.no_grad()
    def logits(self, images: Tensor, task_ids: Tensor | None = None) -> Tensor:
        """Logits, float32 [B, classes], of images, uint8 [B, C, H, W] of any size. Changes no state.

        They are computed in eval mode and, with the option `ema_rate`, by the averaged weights.
        """
        self.input_check.check_query(images, task_ids, self.class_mask.device)
        if self.memory_head is not None:
            return self.mask_logits(self.memory_head.logits(self, images), task_ids)
        return self.stateless_forward(images, task_ids)

    @final
    def predict(self, images: Tensor, task_ids: Tensor | None = None) -> Tensor:
        """The predicted class of each image, int64 [B]; with task ids, one of the classes of its task."""
        return self.logits(images, task_ids).argmax(dim=1)

    @final
    @torch.no_grad()
    def stateless_forward(self, *inputs: Any, batch_statistics: bool = False) -> Tensor:
        """`forward` without gradients, in eval mode and, with the option `ema_rate`, by the averaged weights.

        With `batch_statistics` it is in training mode, but the running statistics of BatchNorm do not change either.
        """
        tensors = {} if self.ema is None else self.ema.means()
        if batch_statistics:
            buffers = [(name, value) for name, value in self.named_buffers() if name.rpartition(".")[2] in STATISTICS]
            tensors |= {name: value.clone() for name, value in buffers}
        with self.thread_guard, self.mode(training=batch_statistics):
            return functional_call(self, tensors, inputs) if tensors else self(*inputs)

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        was_training = self.training
        self.train(training)
        try:
            yield
        finally:
            self.train(was_training)

    # Adding and removing classes

    @final
    def add_classes(self, count: int, task: int | None = None) -> None:
        """Add new classes, numbered from `spec.num_classes` on, to the given task, else to the only one or a new one.

        The logits of the others stay equal to 1e-5 until the next update.
        """
        spec = self.spec.with_classes(count, task)
        self.check(spec, self.config)
        with self.thread_guard, torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=self.generator, device=self.generator.device)))
            self.change_all(spec)

    @final
    def remove_class(self, number: int) -> None:
        """Remove a class and its stored examples. Classes with higher numbers move down by one.

        The logits of the others stay equal to 1e-5 until the next update.
        """
        spec = self.spec.without_class(number)
        self.check(spec, self.config)
        with self.thread_guard:
            self.change_all(spec, int(number))

    @final
    @torch.no_grad()
    def change_all(self, spec: StreamSpec, removed: int | None = None) -> None:
        """Change the classes of this learner and its parts, then the rows of its momenta and averages."""
        self.has_changed()
        shapes = {weight: weight.shape for weight in self.parameters()}
        for module in self.modules():
            if change := getattr(module, "change_classes", None):
                change(spec, removed)
        change_optimizer_rows(shapes, removed, self.optimizers().values())
        if self.ema is not None:
            self.ema.change_rows(self, removed)

    def change_classes(self, spec: StreamSpec, removed: int | None = None) -> None:
        """Adopt a spec with new classes at the end, or without the class `removed`.

        A learner extends this, and a submodule implements it, if it owns tensors indexed by class or task.
        """
        self.spec, self.input_check = spec, InputCheck(spec)
        self.class_mask = spec.class_mask.to(self.class_mask.device)

    # Building blocks of `learn`, `forward` and `end_task`

    def network_input(self, images: Tensor) -> Tensor:
        """Images, uint8 [B, C, H, W], resized and normalised for the network."""
        return image_ops.network_input(images, self.spec.network_size, self.config.normalisation)

    def training_input(self, images: Tensor, replayed: bool = False) -> Tensor:
        """The same for a supervised update, with the random augmentation that the options ask for."""
        config = self.config
        augment = config.augment_replay if replayed and config.augment_replay != "same" else config.augment
        crop_area, normalisation = config.crop_area, config.normalisation
        size = self.spec.network_size
        return image_ops.augmented_input(images, size, augment, self.generator, crop_area, normalisation)

    def outputs(self, net: Callable[..., Tensor], *batches: Batch | Replay) -> list[Tensor]:
        """The outputs of `net(pixels, parts)` for the training input of each batch.

        Each batch has its own BatchNorm statistics; with the option `joint_statistics` all are normalised as one batch.
        """
        pixels = [self.training_input(batch.images, isinstance(batch, Replay)) for batch in batches]
        return forward_batches(net, pixels, len(batches) > 1 and self.config.joint_statistics)

    def batch_logits(self, net: Callable[..., Tensor], *batches: Batch | Replay) -> list[Tensor]:
        """The masked logits of each batch: of the current one and of those replayed with it."""
        outputs = zip(self.outputs(net, *batches), batches, strict=True)
        return [self.mask_logits(logits, batch.task_ids) for logits, batch in outputs]

    def labels_to_learn(self, batch: Batch) -> Tensor | None:
        """The labels of the batch, or None if it is to be skipped.

        A batch without labels is skipped, unless the option `unlabelled: replay` asks for updates on replay only.
        """
        if batch.labels is None and replays_unlabelled(self.config) and self.spec.num_classes > 0:
            return torch.full_like(batch.task_ids, UNLABELLED)
        return batch.labels

    def of_heads(self, logits: Tensor) -> Tensor:
        """The answer of linear heads, [B, classes]: their mean, or the last one with the option `answer: last`."""
        if logits.dim() == 2:
            return logits
        return logits[:, -1] if self.config.answer == "last" else logits.float().mean(dim=1)

    def with_teacher(self, loss: Tensor, logits: Sequence[Tensor], *batches: Batch | Replay) -> Tensor:
        """The loss, and with the option `teacher_weight` the divergence of logits from those of the averaged weights.

        The averaged weights see the images without augmentation, and not before the second step.
        """
        weight = self.config.teacher_weight
        if weight == 0 or self.ema is None or not self.ema.means():
            return loss
        images, task_ids = (torch.cat(parts) for parts in zip(*((b.images, b.task_ids) for b in batches), strict=True))
        taught = torch.ones_like(task_ids, dtype=torch.bool)
        teacher = self.stateless_forward(images, task_ids)
        return loss + weight * losses.soft_label_loss(torch.cat([*logits]), teacher, taught, TEACHER_TEMPERATURE)

    def mask_logits(self, logits: Tensor, task_ids: Tensor | None) -> Tensor:
        """The logits as float32, with the classes outside each example's task masked."""
        return logits.float() if task_ids is None else losses.mask_logits(logits, self.class_mask[task_ids])

    def maps(self, images: Tensor) -> list[Tensor]:
        """The feature maps of images that are classified."""
        encoder = next(module for module in self.modules() if isinstance(module, BaseEncoder))
        return encoder(self.network_input(images))

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """The features of images that a closed-form head classifies: float16 [B, features]."""
        with self.thread_guard, self.mode(training=False):
            return pooled_features(self.maps(images))

    def add_to_sums(self, head: ClosedForm, batch: Batch) -> None:
        """Learn the labelled examples of a batch by the sums of a closed-form head."""
        if batch.storable:
            assert batch.labels is not None
            head.add(self.features(batch.images) if batch.features is None else batch.features, batch.labels)

    def refit(self) -> None:
        """Compute the sums of a closed-form head anew, from the memory, after the encoder has changed."""
        if (head := self.closed_form) is not None:
            head.clear()
            for features, labels in self.memory_features():
                head.add(features, labels)
            self.calibrate()

    def calibrate(self) -> None:
        """Fit the probabilities of a closed-form head to some of the examples in the memory."""
        if (head := self.closed_form) is not None:
            for features, labels in self.memory_features(SOFT_LABEL_BATCH):
                head.calibrate(features, labels)

    def memory_features(self, most: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and labels of the stored examples, or of up to `most` of each memory."""
        for memory in self.memories:
            stored = memory.filled.nonzero().flatten()
            step = 1 if most is None else max(1, -(-len(stored) // most))
            for slots in stored[::step].split(SOFT_LABEL_BATCH) if len(stored) > 0 else ():
                yield self.features(memory.images[slots]), memory.labels[slots]

    def store_soft_labels(self, memory: Memory, statistics: Statistics) -> None:
        """Store the current logits of the stored examples that have none. It synchronises, so not within `learn`."""
        size = SOFT_LABEL_BATCH if statistics == "running" else NORMALISED_BATCH
        with self.thread_guard:
            slots = memory.without_logits()
            evenly = slots.tensor_split(max(-(-len(slots) // size), 1))
            for chunk in slots.split(size) if statistics == "train" else evenly:
                if len(chunk) > 0:
                    logits = self.soft_labels(statistics, memory.images[chunk], memory.task_ids[chunk])
                    memory.set_logits(chunk, logits)

    @torch.no_grad()
    def soft_labels(self, statistics: Statistics, *inputs: Tensor) -> Tensor:
        if statistics != "train":
            return self.stateless_forward(*inputs, batch_statistics=statistics == "batch")
        with self.mode(training=True):
            return self(*inputs)

    # State

    def seed(self, seed: int) -> Self:
        self.generator.manual_seed(seed)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """`.to(device)` moves the generator as well: random numbers are drawn on the device of the tensors."""
        super()._apply(fn, recurse)
        self.has_changed()
        if self.class_mask.device != self.generator.device:
            self.generator = torch.Generator(self.class_mask.device).manual_seed(self.generator.initial_seed())
        return self

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())
        self.has_changed()


def replays_unlabelled(config: CommonOptions) -> bool:
    """Whether batches without labels get updates, on replay only."""
    return isinstance(config, MemoryOptions) and config.unlabelled == "replay"


def are_losses(value: object) -> bool:
    """Whether `learn` may return it. A loss that is not detached would keep its graph in memory until it is logged."""
    if not isinstance(value, dict):
        return False
    return all(isinstance(loss, Tensor) and loss.dim() == 0 and not loss.requires_grad for loss in value.values())


class ThreadGuard:
    """`with guard:` raises RuntimeError while another thread is inside. The same thread may enter again."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            raise RuntimeError("this learner is in use by another thread and is not thread-safe; use a lock")

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    def __reduce__(self) -> Any:
        """A copy of a learner gets its own guard."""
        return ThreadGuard, ()
