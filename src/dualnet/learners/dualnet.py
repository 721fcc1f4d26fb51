"""DualNet (Pham, Liu and Hoi, 2021): a slow learner trained by self-supervision and a fast learner on its features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.image_ops import ViewConfig, two_views
from dualnet.learners.learner import Learner
from dualnet.learners.make_encoder import make_encoder, parameter_groups
from dualnet.learners.shared_options import EncoderOptions, ReplayOptions, SoftLabelOptions
from dualnet.losses import label_loss
from dualnet.nets import Adapter, AdapterNorm, ClosedForm
from dualnet.objectives import Objective, parse_objective
from dualnet.optim import SGD, gradient_step, look_ahead
from dualnet.options import check_at_least, check_fields


@dataclass(frozen=True)
class SlowEncoder(EncoderOptions):
    """The encoder, which is the slow learner."""

    width: int = 64  # channels of the first stage of resnet18; the paper: 20


@dataclass(frozen=True)
class Slow:
    """The slow phase, which trains the encoder on two views of stored images."""

    objective: str = "barlow_twins"  # barlow_twins | simclr | simsiam | vicreg | byol | classification | import path
    objective_options: dict[str, Any] = field(default_factory=dict, hash=False)  # for SimCLR: `dualnet list simclr`
    optimizer: Literal["look_ahead", "sgd"] = "look_ahead"  # sgd: the same n K steps without interpolation
    rounds: int = 3  # n: Look-ahead rounds per batch; 0: no slow phase
    inner_steps: int = 2  # K: SGD steps per round; the paper's Algorithm 1 prints K - 1
    beta: float = 0.05  # Look-ahead's rate; the paper: 0.5
    lr: float = 3e-4  # learning rate of the SGD steps
    momentum: float = 0.0  # the authors: 0.9 if semi-supervised
    weight_decay: float = 0.0  # the authors: 5e-4 if semi-supervised
    batch_size: int = 32  # stored images per SGD step
    # A batch without labels is included with either source. The authors: memory_and_batch if semi-supervised.
    source: Literal["memory", "memory_and_batch"] = "memory"  # where the images of the SGD steps come from
    statistics: Literal["interpolate", "keep"] = "interpolate"  # of BatchNorm statistics in the slow phase

    def __post_init__(self) -> None:
        check_fields(self, rounds=0, batch_size=2)
        check_at_least(self, 0, "beta", most=1)


@dataclass(frozen=True)
class SoftLabels(SoftLabelOptions):
    """The soft labels of DualNet."""

    weight: float = 10.0  # lambda_tr; the paper: 2 with `mean: example`, which is the same for tasks of 5 classes
    temperature: float = 2.0  # tau
    when: Literal["task_end", "insertion"] = "task_end"  # when they are computed; task_end needs task boundaries

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.when == "insertion" and self.statistics != "running":
            raise ValueError(f"statistics: {self.statistics} needs when: task_end")


@dataclass(frozen=True)
class Config(ReplayOptions):
    """The options of DualNet. Defaults: the authors' code for miniImageNet; comments give the values that differ.

    `lr`, `updates` (N), `replay_size` and others as for the baselines belong to the fast phase, which trains both.
    """

    encoder: SlowEncoder = field(default_factory=SlowEncoder)
    # The fast learner: the paper's adapter with a linear head, or without gradients a closed-form head on the features.
    head: Literal["linear", "lda", "ridge", "means"] = "linear"
    adapter_norm: AdapterNorm = "none"  # division of m_l by its squared norm; the paper divides (map or pixel)
    slow: Slow = field(default_factory=Slow)
    views: ViewConfig = field(default_factory=ViewConfig)
    soft_labels: SoftLabels = field(default_factory=SoftLabels)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.soft_labels.check_beside(self.ema_rate)
        if self.encoder.lr == 0 and self.slow.rounds > 0:
            rounds = self.slow.rounds
            raise ValueError(f"slow.rounds: {rounds} would train an encoder that encoder.lr 0 freezes; use 0")
        if self.head != "linear" and (self.heads, self.answer) != ("last", "heads"):
            raise ValueError(f"head: {self.head} is the only head; leave heads and answer out, or use head linear")
        if "." not in self.slow.objective:  # reading options runs no code from outside
            self.parse_objective()

    @property
    def has_soft_labels(self) -> bool:
        """Whether the fast learner has a loss on soft labels."""
        return self.head == "linear" and self.soft_labels.weight > 0

    @property
    def has_soft_labels_at_task_end(self) -> bool:
        return self.has_soft_labels and self.soft_labels.when == "task_end"

    def parse_objective(self) -> tuple[type[Objective], Any]:
        """Class and Config of the objective. Raises ValueError if the options are not suitable."""
        kind, config = parse_objective(self.slow.objective, self.slow.objective_options)
        if self.encoder.name != "resnet18" and kind.needs_built_in_encoder:
            remedy = "choose another objective, or remove encoder.name"
            raise ValueError(f"slow.objective: {self.slow.objective} needs the built-in encoder; {remedy}")
        return kind, config


class DualNet(Learner):
    """DualNet (Pham, Liu and Hoi, DualNet: Continual Learning, Fast and Slow, NeurIPS 2021).

    The slow learner, an encoder, minimises a self-supervised loss (Barlow Twins by default) with Look-ahead. The fast
    learner, an adapter on its features, minimises CE(batch) + CE(replay) + lambda KL(soft labels || replay). With a
    closed-form head it is exact instead, which suits an encoder that is frozen or changes slowly.
    """

    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        channels = spec.image_shape[0]
        self.slow = make_encoder(spec, config)
        if config.head == "linear":
            self.fast = Adapter(self.slow.channels, spec.num_classes, config.adapter_norm, channels, config.heads)
            both = [*self.slow.parameters(), *self.fast.parameters()]
            self.fast_optimizer = SGD(parameter_groups(both, self.slow, config), lr=config.lr)
        else:
            self.fast = ClosedForm(2 * sum(self.slow.channels), spec.num_classes, config.head)
            self.capturable = False  # a replayed graph would not tell the head that its sums have changed
        objective, options = config.parse_objective()
        self.memory = config.memory.make(spec)
        if config.slow.rounds > 0:
            self.objective = objective(self.slow.channels[-1], spec, options)
            self.slow_optimizer = SGD(
                [*self.slow.parameters(), *(weight for weight in self.objective.parameters() if weight.requires_grad)],
                lr=config.slow.lr,
                momentum=config.slow.momentum,
                weight_decay=config.slow.weight_decay,
            )

    @classmethod
    def check(cls, spec: StreamSpec, config: Any) -> None:
        super().check(spec, config)
        channels = spec.image_shape[0]
        if channels != 3:
            raise ValueError(f"images of {channels} channels: the views of the slow learner need colour, 3 channels")

    @classmethod
    def needs_boundaries(cls, config: Any) -> bool:
        return super().needs_boundaries(config) or config.has_soft_labels_at_task_end

    @classmethod
    def needs_memory(cls, config: Any) -> bool:
        return config.head == "linear" or config.slow.rounds > 0

    @classmethod
    def learns_unlabelled(cls, config: Any) -> bool:
        return config.slow.rounds > 0 or (config.head == "linear" and super().learns_unlabelled(config))

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.mask_logits(self.of_heads(self.net(self.network_input(images))), task_ids)

    def maps(self, images: Tensor) -> list[Tensor]:
        maps = super().maps(images)
        return self.fast.adapted(self.network_input(images), maps) if isinstance(self.fast, Adapter) else maps

    def net(self, pixels: Tensor, parts: int = 1) -> Tensor:
        """The logits of the adapter on the features of the encoder."""
        return self.fast(pixels, self.slow(pixels, parts), parts)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        self.store(batch)
        return self.learn_slow(batch) | self.learn_fast(batch)

    def store(self, batch: Batch) -> None:
        """Offer the batch to the memory, before it is learned as in the authors' code."""
        at_insertion = self.config.has_soft_labels and self.config.soft_labels.when == "insertion"
        inputs = batch.images, batch.task_ids
        logits = self.stateless_forward(*inputs) if at_insertion and batch.storable else None
        self.memory.add(batch, self.generator, logits)

    def learn_slow(self, batch: Batch) -> dict[str, Tensor]:
        slow = self.config.slow
        if slow.rounds == 0 or (self.memory.is_held and len(batch) == 1):  # BatchNorm needs two images
            return {}
        steps = self.slow_steps(batch)

        def loss() -> Tensor:
            return self.objective(self.slow, *next(steps))

        options = (slow.inner_steps, slow.beta, *self.interpolated_and_kept())
        losses = [look_ahead(self.slow_optimizer, loss, *options) for _ in range(slow.rounds)]
        return {"slow": torch.stack(losses).mean()}

    def interpolated_and_kept(self) -> tuple[list[Tensor], list[Tensor]]:
        """For Look-ahead. Found anew for each batch, because `.to(device)` replaces the BatchNorm statistics."""
        slow, weights = self.config.slow, self.slow_optimizer.param_groups[0]["params"]
        buffers = [*self.slow.buffers(), *self.objective.buffers()]
        statistics = [buffer for buffer in buffers if buffer.is_floating_point()]
        interpolated, kept = (weights, statistics) if slow.statistics == "keep" else (weights + statistics, [])
        return ([] if slow.optimizer == "sgd" else interpolated), kept

    def slow_steps(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Batch]]:
        """Two views and the examples they show, for each inner step; all are generated at once, as one large batch."""
        steps = self.config.slow.rounds * self.config.slow.inner_steps
        images, labels, task_ids = self.slow_examples(batch, steps)
        views = two_views(images, self.spec.network_size, self.config.views, self.generator, steps)
        chunks = (tensor.chunk(steps) for tensor in (*views, images, labels, task_ids))
        for view_a, view_b, *examples in zip(*chunks, strict=True):
            yield view_a, view_b, Batch(*examples)

    def slow_examples(self, batch: Batch, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """Images, labels and task ids for the slow learner, concatenated over the inner steps.

        Unlike in the fast phase, placeholders keep the labels that they have in the batch.
        """
        labels = torch.full_like(batch.task_ids, UNLABELLED) if batch.labels is None else batch.labels
        replay = self.memory.sample(self.config.slow.batch_size, self.generator, beside=batch, draws=steps)
        past_labels = torch.where(replay.stored, replay.labels, labels[replay.batch_rows])
        if batch.labels is not None and self.config.slow.source == "memory" and not self.memory.is_held:
            return replay.images, past_labels, replay.task_ids
        return (
            interleave(batch.images, replay.images, steps),
            interleave(labels, past_labels, steps),
            interleave(batch.task_ids, replay.task_ids, steps),
        )

    def learn_fast(self, batch: Batch) -> dict[str, Tensor]:
        if isinstance(self.fast, ClosedForm):
            self.add_to_sums(self.fast, batch)
            return {}
        labels = self.labels_to_learn(batch)
        if labels is None:
            return {}
        return [self.update_fast(batch, labels) for _ in range(self.config.updates)][-1]

    def update_fast(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        """One step on the loss of the paper's equation 7."""
        config, replay = self.config, self.memory.sample(self.config.replay_size, self.generator, beside=batch)
        now_logits, past_logits = self.batch_logits(self.net, batch, replay)
        now_loss, past_loss = label_loss(now_logits, labels), label_loss(past_logits, replay.labels)
        soft = config.soft_labels
        soft_loss = soft.loss(past_logits, replay)
        replay_loss = config.replay_weight * past_loss + soft.weight * soft_loss
        loss = self.with_teacher(now_loss + replay_loss, [now_logits, past_logits], batch, replay)
        gradient_step(self.fast_optimizer, loss)
        return {"labels": now_loss.detach(), "replay": past_loss.detach(), "soft_labels": soft_loss.detach()}

    def end_task(self) -> None:
        super().end_task()
        if self.config.has_soft_labels_at_task_end:  # otherwise they already have logits, or need none
            self.store_soft_labels(self.memory, self.config.soft_labels.statistics)
        if self.config.slow.rounds > 0:
            self.refit()


def interleave(first: Tensor, rest: Tensor, parts: int) -> Tensor:
    """Concatenates `first` and a part of `rest`, for each of its equal parts."""
    return torch.cat([tensor for part in rest.chunk(parts) for tensor in (first, part)])
