"""CTN, Contextual Transformation Networks (Pham et al., 2021): a base, and a controller that fits it to the task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.image_ops import Augment
from dualnet.learners.learner import Learner
from dualnet.losses import label_loss, soft_label_loss
from dualnet.memory import MemoryConfig, Ring, rank_among
from dualnet.nets import Controller, FilmClassifier, two_batches
from dualnet.optim import descend
from dualnet.options import check_at_least, check_choices

SEMANTIC_EVERY = 10  # one labelled example in so many of a task goes to the semantic memory; the authors: one per batch
LARGEST_GRADIENT = 1.0  # of each weight of the controller; the authors' code


@dataclass(frozen=True)
class Config:
    """Defaults are those of DualNet's paper, which are the authors' on miniImageNet."""

    width: int = 20  # channels of the base's first stage; 64 is the full ResNet18
    embedding_size: int = 64  # numbers that describe a task to the controller
    lr: float = 0.01  # alpha, of the base
    controller_lr: float = 0.05  # beta
    inner_steps: int = 2  # steps of the base before each of the controller
    outer_steps: int = 2  # steps of the controller per batch
    replay_size: int = 64  # of each draw, from either memory
    soft_label_weight: float = 100.0  # lambda
    soft_label_mean: Literal["class", "example"] = (
        "class"  # the KL is a mean over examples and classes (the authors), or a sum over these
    )
    temperature: float = 5.0  # tau
    semantic_share: float = 0.2  # of the memory's slots, for examples that teach the controller alone
    joint_statistics: bool = False  # one BatchNorm over batch and replay, for tasks that look different; else one each
    augment: Augment = "none"  # what an update sees of images: a random view (the paper's -Aug), or crop
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    def __post_init__(self) -> None:
        check_at_least(self, 1, "width", "embedding_size", "inner_steps", "outer_steps", "replay_size")
        check_at_least(self, 0, "lr", "controller_lr", "soft_label_weight")
        check_at_least(self, 1e-6, "temperature")
        check_choices(self)
        if not 0 < self.semantic_share < 1:
            raise ValueError(f"semantic_share: {self.semantic_share} is not between 0 and 1")


class CTN(Learner):
    Config = Config
    config: Config
    offered: Tensor  # int64 [tasks]: labelled examples so far

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        if spec.num_tasks == 1:
            raise ValueError(
                "ctn adapts to tasks, and is told of one only: use protocol task_aware, and two tasks or more"
            )
        self.base = FilmClassifier(config.width, spec.num_classes, spec.image_shape[0])
        self.controller = Controller(spec.num_tasks, config.embedding_size, self.base.encoder.channels[-1])
        num_semantic = semantic_slots(spec, config)
        self.memory = config.memory.make(spec, set_aside=num_semantic)
        self.semantic = Ring(spec, num_semantic, with_logits=False)
        self.register_buffer("offered", torch.zeros(spec.num_tasks, dtype=torch.int64))
        self.base_optimizer = torch.optim.SGD(self.base.parameters(), lr=config.lr)
        self.controller_optimizer = torch.optim.SGD(self.controller.parameters(), lr=config.controller_lr)

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        features = self.base.features(self.network_input(images))
        if task_ids is None:
            return self.each_class_by_its_task(features)
        return self.logits(features, task_ids)

    def logits(self, features: Tensor, task_ids: Tensor) -> Tensor:
        return self.restricted(self.base(features, *self.controller(task_ids)), task_ids)

    def each_class_by_its_task(self, features: Tensor) -> Tensor:
        """Without a task every class may answer: each with the scale and shift of the (first) task that it is in."""
        tasks = torch.arange(self.spec.num_tasks, device=features.device)
        of_tasks = [self.base(features, *self.controller(task.expand(len(features)))) for task in tasks]
        home = self.class_mask.long().argmax(dim=0).expand(1, len(features), -1)
        return torch.stack(of_tasks).gather(0, home)[0].float()

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        if batch.labels is not None:
            batch, labels = self.set_aside(batch, batch.labels)
            self.memory.add(batch, self.generator)
            for _ in range(self.config.outer_steps):
                for _ in range(self.config.inner_steps):
                    losses = self.update_base(batch, labels)
                losses["controller"] = self.update_controller(batch)
        return losses

    @torch.no_grad()
    def set_aside(self, batch: Batch, labels: Tensor) -> tuple[Batch, Tensor]:
        """Gives the semantic memory its examples. Returns the base's batch, and its labels.

        What the semantic memory no longer holds takes their places in it; while it gives nothing back, the example
        stays to look at, without its label.
        """
        chosen = self.chosen(batch, labels)
        slots = self.semantic.place(batch, chosen, self.generator)
        later_wins = ((slots[:, None] == slots[None, :]) & chosen[None, :]).triu(1).any(dim=1)  # in a large batch
        held = chosen & ~later_wins
        returned = held & self.semantic.filled[slots]
        images = torch.where(returned.view(-1, 1, 1, 1), self.semantic.images[slots], batch.images)
        others = torch.where(returned, self.semantic.labels[slots], torch.where(held, UNLABELLED, labels))
        self.semantic.add(Batch(batch.images, torch.where(chosen, labels, UNLABELLED), batch.task_ids), self.generator)
        return Batch(images, others, batch.task_ids), others

    def chosen(self, batch: Batch, labels: Tensor) -> Tensor:
        """The first labelled example of a task, and one in SEMANTIC_EVERY from there on: bool [B]."""
        labelled = labels != UNLABELLED
        rank = rank_among(labelled, batch.task_ids[:, None] == batch.task_ids[None, :])
        number = self.offered[batch.task_ids] + rank
        self.offered.index_add_(0, batch.task_ids, labelled.long())
        return labelled & (number % SEMANTIC_EVERY == 0)

    def update_base(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        """One step of the base on CE(batch) + CE(replay) + lambda KL(soft labels || replay)."""
        replay = self.memory.sample(self.config.replay_size, self.generator, beside=batch)
        past = replay.batch
        assert past.labels is not None
        now_pixels, past_pixels = self.training_input(batch.images), self.training_input(past.images)
        now, then = two_batches(self.base.features, now_pixels, past_pixels, self.config.joint_statistics)
        past_logits = self.logits(then, past.task_ids)
        now_loss = label_loss(self.logits(now, batch.task_ids), labels)
        past_loss = label_loss(past_logits, past.labels)
        soft_loss = soft_label_loss(
            past_logits,
            replay.logits,
            replay.has_logits,
            self.config.temperature,
            self.config.soft_label_mean == "class",
        )
        descend(self.base_optimizer, now_loss + past_loss + self.config.soft_label_weight * soft_loss)
        return {"labels": now_loss.detach(), "replay": past_loss.detach(), "soft_labels": soft_loss.detach()}

    def update_controller(self, batch: Batch) -> Tensor:
        """One step of the controller on CE(semantic memory); the base is a constant to it."""
        held = self.semantic.sample(self.config.replay_size, self.generator, beside=batch).batch
        assert held.labels is not None
        with torch.no_grad():
            features = self.base.features(self.training_input(held.images))
        loss = label_loss(self.logits(features, held.task_ids), held.labels)
        descend(self.controller_optimizer, loss / self.config.outer_steps, LARGEST_GRADIENT)
        return loss.detach()

    @property
    def needs_boundaries(self) -> bool:
        return self.config.soft_label_weight > 0

    def end_task(self) -> None:
        self.remember_answers(self.memory)

    def optimizers(self) -> dict[str, Optimizer]:
        return {"base": self.base_optimizer, "controller": self.controller_optimizer}


def semantic_slots(spec: StreamSpec, config: Config) -> int:
    """The slots of the semantic memory: its share of those of a task, one at least, for every task."""
    of_a_task = config.memory.num_slots(spec) // spec.num_tasks
    if of_a_task < 2:
        slots = config.memory.slots_per_class
        raise ValueError(f"memory.slots_per_class: {slots} is one slot per task; ctn has two memories, use 2 or more")
    return min(max(round(config.semantic_share * of_a_task), 1), of_a_task - 1) * spec.num_tasks
