"""DualNet (Pham, Liu and Hoi, 2021): a slow learner trained by self-supervision, a fast one on its features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.image_ops import ViewConfig, two_views
from dualnet.learners.learner import Learner
from dualnet.losses import label_loss, soft_label_loss
from dualnet.memory import MemoryConfig, Replay
from dualnet.nets import Adapter, AdapterNorm, Encoder, two_batches
from dualnet.objectives import OBJECTIVES
from dualnet.optim import LookAhead, descend
from dualnet.options import check_at_least, check_choices


@dataclass(frozen=True)
class Config:
    """Defaults are the authors' settings on miniImageNet; where the paper differs, the comment gives its value."""

    width: int = 64  # channels of the slow learner's first stage; the paper: 20
    adapter_norm: AdapterNorm = "none"  # division of m_l by its squared norm; the paper divides (map or pixel)
    # The slow learner
    objective: Literal["barlow_twins", "simclr", "simsiam", "vicreg", "byol", "classification"] = "barlow_twins"
    slow_optimizer: Literal["look_ahead", "sgd"] = "look_ahead"  # sgd: the same n K steps, none of them taken back
    slow_rounds: int = 3  # n: Look-ahead rounds per batch; 0: no self-supervision
    inner_steps: int = 2  # K: SGD steps per round
    beta: float = 0.05  # Look-ahead's rate; the paper: 0.5
    slow_lr: float = 3e-4
    slow_momentum: float = 0.0  # the authors: 0.9 if semi-supervised
    slow_weight_decay: float = 0.0  # the authors: 5e-4 if semi-supervised
    slow_batch_size: int = 32
    # What the slow learner sees; a batch without any label is always shown. The authors: both if semi-supervised.
    slow_source: Literal["memory", "memory_and_batch"] = "memory"
    slow_statistics: Literal["interpolate", "keep"] = "interpolate"  # BatchNorm statistics in the slow phase
    views: ViewConfig = field(default_factory=ViewConfig)
    # The fast learner; its gradient moves both
    fast_lr: float = 0.03
    updates: int = 2  # N: supervised steps per batch
    replay_size: int = 10
    joint_statistics: bool = False  # one BatchNorm over batch and replay, for tasks that look different; else one each
    soft_label_weight: float = (
        10.0  # lambda_tr; the paper: 2 with `example`, which is the same where a task has 5 classes
    )
    soft_label_mean: Literal["class", "example"] = (
        "class"  # the KL is a mean over examples and classes, or a sum over these
    )
    temperature: float = 2.0  # tau
    soft_labels: Literal["task_end", "insertion"] = "task_end"  # when they are taken; task_end needs boundaries
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    def __post_init__(self) -> None:
        check_at_least(self, 1, "width", "inner_steps", "updates", "replay_size")
        check_at_least(self, 0, "slow_rounds", "slow_lr", "slow_momentum", "slow_weight_decay")
        check_at_least(self, 0, "fast_lr", "soft_label_weight")
        check_choices(self)
        check_at_least(self, 2, "slow_batch_size")
        check_at_least(self, 1e-6, "temperature")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta: {self.beta} is not between 0 and 1")


class DualNet(Learner):
    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        channels = spec.image_shape[0]
        if channels != 3:
            raise ValueError(f"images of {channels} channels: the views of the slow learner need colour, 3 channels")
        self.slow = Encoder(config.width, channels)
        self.fast = Adapter(self.slow.channels, spec.num_classes, config.adapter_norm, channels)
        self.objective = OBJECTIVES[config.objective](self.slow.channels[-1], spec)
        self.memory = config.memory.make(spec)
        self.fast_optimizer = torch.optim.SGD([*self.slow.parameters(), *self.fast.parameters()], lr=config.fast_lr)
        self.slow_optimizer = torch.optim.SGD(
            [*self.slow.parameters(), *(weight for weight in self.objective.parameters() if weight.requires_grad)],
            lr=config.slow_lr,
            momentum=config.slow_momentum,
            weight_decay=config.slow_weight_decay,
        )

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.restricted(self.logits(self.network_input(images)), task_ids)

    def logits(self, pixels: Tensor, parts: int = 1) -> Tensor:
        return self.fast(pixels, self.slow(pixels, parts), parts)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        self.store(batch)
        return self.learn_slow(batch) | self.learn_fast(batch)

    def store(self, batch: Batch) -> None:
        """The batch is offered to the memory before it is learned, as in the authors' code."""
        at_insertion = self.config.soft_labels == "insertion" and batch.labels is not None
        logits = self.answer(batch.images, batch.task_ids) if at_insertion else None
        self.memory.add(batch, self.generator, logits)

    def learn_slow(self, batch: Batch) -> dict[str, Tensor]:
        if self.config.slow_rounds == 0:
            return {}
        look_ahead, shown = self.look_ahead(), self.slow_steps(batch)
        rounds = [
            look_ahead.round(lambda: self.objective(self.slow, *next(shown))) for _ in range(self.config.slow_rounds)
        ]
        return {"slow": torch.stack(rounds).mean()}

    def look_ahead(self) -> LookAhead:
        """Made when it is used: `.to(device)` puts new statistics in the place of those it would have kept."""
        weights = self.slow_optimizer.param_groups[0]["params"]
        buffers = [*self.slow.buffers(), *self.objective.buffers()]
        statistics = [buffer for buffer in buffers if buffer.is_floating_point()]
        interpolated, kept = weights, statistics
        if self.config.slow_statistics == "interpolate":
            interpolated, kept = weights + statistics, []
        if self.config.slow_optimizer == "sgd":
            interpolated = []
        return LookAhead(self.slow_optimizer, interpolated, self.config.inner_steps, self.config.beta, kept)

    def slow_steps(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Batch]]:
        """Two views and the examples they show, for each inner step: drawn and made together, as one large batch."""
        steps = self.config.slow_rounds * self.config.inner_steps
        shown = self.slow_batches(batch, steps)
        assert shown.labels is not None
        views = two_views(shown.images, self.spec.network_size, self.config.views, self.generator)
        parts = (each.chunk(steps) for each in (*views, shown.images, shown.labels, shown.task_ids))
        for view_a, view_b, images, labels, task_ids in zip(*parts, strict=True):
            yield view_a, view_b, Batch(images, labels, task_ids)

    def slow_batches(self, batch: Batch, steps: int) -> Batch:
        """What the slow learner looks at in each step, one behind the other.

        Examples that stand in for stored ones keep the label of the batch here.
        """
        labels = torch.full_like(batch.task_ids, UNLABELLED) if batch.labels is None else batch.labels
        replay = self.memory.sample(self.config.slow_batch_size, self.generator, beside=batch, draws=steps)
        past = replay.batch
        assert past.labels is not None
        past_labels = torch.where(replay.stored, past.labels, labels[replay.stand_ins])
        if batch.labels is not None and self.config.slow_source == "memory":
            return Batch(past.images, past_labels, past.task_ids)
        return Batch(
            before_each(batch.images, past.images, steps),
            before_each(labels, past_labels, steps),
            before_each(batch.task_ids, past.task_ids, steps),
        )

    def learn_fast(self, batch: Batch) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        if batch.labels is not None:
            for _ in range(self.config.updates):
                losses = self.update_fast(batch, batch.labels)
        return losses

    def update_fast(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        """One step on the loss of equation 7."""
        replay = self.memory.sample(self.config.replay_size, self.generator, beside=batch)
        past = replay.batch
        now_pixels, past_pixels = self.network_input(batch.images), self.network_input(past.images)
        now_logits, past_logits = two_batches(self.logits, now_pixels, past_pixels, self.config.joint_statistics)
        past_logits = self.restricted(past_logits, past.task_ids)
        assert past.labels is not None
        now_loss = label_loss(self.restricted(now_logits, batch.task_ids), labels)
        past_loss = label_loss(past_logits, past.labels)
        soft_loss = self.soft_label_loss(past_logits, replay)
        descend(self.fast_optimizer, now_loss + past_loss + self.config.soft_label_weight * soft_loss)
        return {"labels": now_loss.detach(), "replay": past_loss.detach(), "soft_labels": soft_loss.detach()}

    def soft_label_loss(self, logits: Tensor, replay: Replay) -> Tensor:
        over_classes = self.config.soft_label_mean == "class"
        return soft_label_loss(logits, replay.logits, replay.has_logits, self.config.temperature, over_classes)

    @property
    def needs_boundaries(self) -> bool:
        return self.config.soft_labels == "task_end" and self.config.soft_label_weight > 0

    def end_task(self) -> None:
        if self.config.soft_labels == "task_end":  # at insertion all that is stored was answered: nothing to look for
            self.remember_answers(self.memory)

    def optimizers(self) -> dict[str, Optimizer]:
        return {"fast": self.fast_optimizer, "slow": self.slow_optimizer}


def before_each(first: Tensor, rest: Tensor, parts: int) -> Tensor:
    """`first` put before each of the equal parts of `rest`."""
    return torch.cat([tensor for part in rest.chunk(parts) for tensor in (first, part)])
