"""CTN, Contextual Transformation Networks (Pham et al., 2021): a base network adapted to each task by a controller."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from dualnet.batch import UNLABELLED, Batch, StreamSpec, change_rows
from dualnet.learners.learner import Learner
from dualnet.learners.make_encoder import make_encoder, parameter_groups
from dualnet.learners.shared_options import MemoryOptions, SoftLabelOptions
from dualnet.losses import label_loss
from dualnet.memory import Ring, has_later_equal, num_earlier_equal
from dualnet.nets import Classifier, Controller, film, pooled
from dualnet.optim import SGD, gradient_step

SEMANTIC_EVERY = 10  # every tenth labelled example of a task goes to the semantic memory; the authors: one per batch
CLIP_VALUE = 1.0  # elementwise, for the controller's gradient; as in the authors' code


@dataclass(frozen=True)
class SoftLabels(SoftLabelOptions):
    """The soft labels of CTN, computed at the end of a task."""

    weight: float = 100.0  # lambda
    temperature: float = 5.0  # tau


@dataclass(frozen=True)
class Config(MemoryOptions):
    """The options of CTN. Defaults: DualNet's paper; docs/learners/ctn.md has what differs in the authors' code."""

    embedding_size: int = 64  # length of a task embedding, the input of the controller
    lr: float = 0.01  # alpha, learning rate of the base
    controller_lr: float = 0.05  # beta, learning rate of the controller
    inner_steps: int = 2  # steps of the base before each step of the controller
    outer_steps: int = 2  # steps of the controller per batch
    batch_pass: Literal["inner", "outer"] = "inner"  # steps with a forward pass of the batch; the authors: outer
    replay_size: int = 64  # examples per draw, from either memory
    soft_labels: SoftLabels = field(default_factory=SoftLabels)
    semantic_share: float = 0.2  # share of the slots that hold examples for the controller only

    def __post_init__(self) -> None:
        if not 0 < self.semantic_share < 1:
            raise ValueError(f"semantic_share: {self.semantic_share} is not between 0 and 1")
        if self.batch_pass == "outer" and self.joint_statistics:
            raise ValueError("batch_pass: outer passes the batch without the replay; use joint_statistics: false")
        super().__post_init__()
        self.soft_labels.check_beside(self.ema_rate)


class CTN(Learner):
    """Contextual Transformation Networks (Pham et al., Contextual Transformation Networks for Online CL, 2021).

    The base minimises CE(batch) + CE(replay) + lambda KL(soft labels || replay). The controller, which scales and
    shifts the features of the base for each task, minimises CE on a semantic memory that the base never learns from.
    """

    Config = Config
    config: Config
    offered: Tensor  # int64 [tasks]: labelled examples so far

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        # As in the authors' code, no ReLU follows the residual sums, so that features have both signs. The starter was
        # trained with it.
        encoder = make_encoder(spec, config, block_relu=config.encoder.weights is not None)
        self.base = Classifier(encoder, spec.num_classes)
        self.controller = Controller(spec.num_tasks, config.embedding_size, self.base.encoder.channels[-1])
        num_semantic = semantic_slots(spec, config)
        self.memory = config.memory.make(spec, set_aside=num_semantic)
        self.semantic = Ring(spec, num_semantic, with_logits=False)
        self.register_buffer("offered", torch.zeros(spec.num_tasks, dtype=torch.int64))
        self.base_optimizer = SGD(parameter_groups(self.base.parameters(), encoder, config), lr=config.lr)
        self.controller_optimizer = SGD(self.controller.parameters(), lr=config.controller_lr)

    @classmethod
    def check(cls, spec: StreamSpec, config: Any) -> None:
        super().check(spec, config)
        if spec.num_tasks == 1:
            raise ValueError("ctn needs the task of each example: use protocol task_aware with two or more tasks")
        semantic_slots(spec, config)

    @classmethod
    def needs_boundaries(cls, config: Any) -> bool:
        return super().needs_boundaries(config) or config.soft_labels.weight > 0

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        features = self.base.features(self.network_input(images))
        if task_ids is None:
            return self.logits_of_all_tasks(features)
        return self.task_logits(features, task_ids)

    def task_logits(self, features: Tensor, task_ids: Tensor) -> Tensor:
        return self.mask_logits(self.film_logits(features, task_ids), task_ids)

    def film_logits(self, features: Tensor, task_ids: Tensor) -> Tensor:
        return self.base.head(pooled(film(features, *self.controller(task_ids))))

    def logits_of_all_tasks(self, features: Tensor) -> Tensor:
        """Without task ids: the logit of each class with the scale and shift of the (first) task that contains it."""
        tasks = torch.arange(self.spec.num_tasks, device=features.device)
        logits = [self.film_logits(features, task.expand(len(features))) for task in tasks]
        first_task = self.class_mask.long().argmax(dim=0).expand(1, len(features), -1)
        return torch.stack(logits).gather(0, first_task)[0].float()

    def change_classes(self, spec: StreamSpec, removed: int | None = None) -> None:
        super().change_classes(spec, removed)
        self.offered = change_rows(self.offered, spec.num_tasks)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        labels = self.labels_to_learn(batch)
        if labels is not None:
            if not batch.repeated:
                batch, labels = self.set_aside(batch, labels)
            self.memory.add(batch, self.generator)
            for _ in range(self.config.outer_steps):
                now_loss = self.batch_loss(batch, labels) if self.config.batch_pass == "outer" else None
                for _ in range(self.config.inner_steps):
                    losses = self.update_base(batch, labels, now_loss)
                losses["controller"] = self.update_controller(batch)
        return losses

    @torch.no_grad()
    def set_aside(self, batch: Batch, labels: Tensor) -> tuple[Batch, Tensor]:
        """Move examples to the semantic memory. Returns the batch and the labels that the base learns from.

        An example that is moved is replaced in the batch by the one that it pushes out of the semantic memory. If it
        pushes none out, its image stays in the batch without its label.
        """
        chosen = self.semantic_examples(batch, labels)
        slots = self.semantic.place(batch, chosen, self.generator)
        moved = chosen & ~has_later_equal(torch.where(chosen, slots, self.semantic.drop))  # possible in a large batch
        returned = moved & self.semantic.filled[slots]
        images = torch.where(returned.view(-1, 1, 1, 1), self.semantic.images[slots], batch.images)
        others = torch.where(returned, self.semantic.labels[slots], torch.where(moved, UNLABELLED, labels))
        self.semantic.add(Batch(batch.images, torch.where(chosen, labels, UNLABELLED), batch.task_ids), self.generator)
        return Batch(images, others, batch.task_ids), others

    def semantic_examples(self, batch: Batch, labels: Tensor) -> Tensor:
        """The first labelled example of each task and every SEMANTIC_EVERY-th after it, bool [B]."""
        labelled = labels != UNLABELLED
        number = self.offered[batch.task_ids] + num_earlier_equal(batch.task_ids, labelled)
        self.offered.index_add_(0, batch.task_ids, labelled.long())
        return labelled & (number % SEMANTIC_EVERY == 0)

    def batch_loss(self, batch: Batch, labels: Tensor) -> Tensor:
        """CE(batch). In float32: for bfloat16, rounded copies of the weights would be kept for the backward passes."""
        with torch.autocast(labels.device.type, enabled=False):
            (features,) = self.outputs(self.base.features, batch)
            return label_loss(self.task_logits(features, batch.task_ids), labels)

    def update_base(self, batch: Batch, labels: Tensor, now_loss: Tensor | None = None) -> dict[str, Tensor]:
        """One step of the base, with a constant controller. `now_loss`: CE(batch) of an earlier forward pass."""
        config, replay = self.config, self.memory.sample(self.config.replay_size, self.generator, beside=batch)
        keep_graph = now_loss is not None
        if now_loss is None:
            now_features, past_features = self.outputs(self.base.features, batch, replay)
            now_loss = label_loss(self.task_logits(now_features, batch.task_ids), labels)
        elif self.memory.is_held:
            gradient_step(self.base_optimizer, now_loss, keep_graph=keep_graph)
            return {"labels": now_loss.detach()}
        else:
            (past_features,) = self.outputs(self.base.features, replay)
        past_logits = self.task_logits(past_features, replay.task_ids)
        past_loss = label_loss(past_logits, replay.labels)
        soft = config.soft_labels
        soft_loss = config.soft_labels.loss(past_logits, replay)
        loss = now_loss + past_loss + soft.weight * soft_loss
        gradient_step(self.base_optimizer, loss, keep_graph=keep_graph)
        return {"labels": now_loss.detach(), "replay": past_loss.detach(), "soft_labels": soft_loss.detach()}

    def update_controller(self, batch: Batch) -> Tensor:
        """One step of the controller on CE(semantic memory), with a constant base."""
        replay = self.semantic.sample(self.config.replay_size, self.generator, beside=batch)
        with torch.no_grad():
            features = self.base.features(self.training_input(replay.images, replayed=True))
        loss = label_loss(self.task_logits(features, replay.task_ids), replay.labels)
        gradient_step(self.controller_optimizer, loss / self.config.outer_steps, CLIP_VALUE)
        return loss.detach()

    def end_task(self) -> None:
        super().end_task()
        self.store_soft_labels(self.memory, self.config.soft_labels.statistics)


def semantic_slots(spec: StreamSpec, config: Config) -> int:
    """The size of the semantic memory: for every task its share of the slots, at least one."""
    per_task = config.memory.num_slots(spec) // spec.num_tasks
    if per_task < 2:
        slots, needed = config.memory.slots_per_class, -(-2 * spec.num_tasks // spec.num_classes)
        raise ValueError(f"memory.slots_per_class: {slots} is too few for two memories; use {needed} or more")
    return min(max(round(config.semantic_share * per_task), 1), per_task - 1) * spec.num_tasks
