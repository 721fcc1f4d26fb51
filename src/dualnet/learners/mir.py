"""MIR (Aljundi et al., 2019): ER that replays the stored examples which a step on the batch would harm most."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.optim import Optimizer

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.image_ops import Augment
from dualnet.learners.learner import Learner
from dualnet.losses import label_loss
from dualnet.memory import MemoryConfig
from dualnet.nets import Classifier, two_batches
from dualnet.optim import copies, descend
from dualnet.options import check_at_least, check_choices


@dataclass(frozen=True)
class Config:
    width: int = 20  # channels of the first stage; 64 is the full ResNet18
    lr: float = 0.03  # of the virtual step too
    updates: int = 2  # gradient steps per batch
    replay_size: int = 10
    candidates: int = 50  # drawn from the memory, of which the replay is chosen; DualNet's paper does not say
    joint_statistics: bool = False  # one BatchNorm over batch and replay, for tasks that look different; else one each
    augment: Augment = "none"  # what an update sees of images: a random view (the paper's -Aug), or crop (task-free)
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    def __post_init__(self) -> None:
        check_at_least(self, 1, "width", "updates", "replay_size")
        check_at_least(self, 0, "lr")
        check_choices(self)
        check_at_least(self, self.replay_size, "candidates")


class MIR(Learner):
    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.net = Classifier(config.width, spec.num_classes, spec.image_shape[0])
        self.memory = config.memory.make(spec, with_logits=False)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=config.lr)

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.restricted(self.net(self.network_input(images)), task_ids)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        if batch.labels is not None:
            self.memory.add(batch, self.generator)
            for _ in range(self.config.updates):
                losses = self.update(batch, batch.labels)
        return losses

    def update(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        past = self.most_interfered(batch, labels)
        assert past.labels is not None
        now_pixels, past_pixels = self.training_input(batch.images), self.training_input(past.images)
        now_logits, past_logits = two_batches(self.net, now_pixels, past_pixels, self.config.joint_statistics)
        now_logits = self.restricted(now_logits, batch.task_ids)
        past_logits = self.restricted(past_logits, past.task_ids)
        now_loss, past_loss = label_loss(now_logits, labels), label_loss(past_logits, past.labels)
        descend(self.optimizer, now_loss + past_loss)
        return {"labels": now_loss.detach(), "replay": past_loss.detach()}

    def most_interfered(self, batch: Batch, labels: Tensor) -> Batch:
        """Of some stored examples, those whose loss a step on the batch alone would raise most.

        The trial sees the images as they are: with `augment`, one draw's luck would choose, not the example.
        """
        replay = self.memory.sample(self.config.candidates, self.generator, beside=batch)
        drawn = replay.batch
        assert drawn.labels is not None
        rise = self.rise(drawn, drawn.labels, self.virtual_step(batch, labels))
        rows = highest(rise, num_before(replay.slots), self.config.replay_size)
        return Batch(drawn.images[rows], drawn.labels[rows], drawn.task_ids[rows])

    def virtual_step(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        """The weights after a step of SGD on the batch, by name. The pass moves copies of the statistics."""
        names, weights = zip(*self.net.named_parameters(), strict=True)
        statistics = dict(self.net.named_buffers())
        spare = dict(zip(statistics, copies([*statistics.values()]), strict=True))
        logits = functional_call(self.net, spare, (self.network_input(batch.images),))
        loss = label_loss(self.restricted(logits, batch.task_ids), labels)
        with torch.autocast(loss.device.type, enabled=False), torch.no_grad():  # as in `descend`
            grads = torch.autograd.grad(loss, weights)
            moved = torch._foreach_add(weights, grads, alpha=-self.config.lr)  # pyright: ignore[reportPrivateImportUsage]
        return dict(zip(names, moved, strict=True))

    @torch.no_grad()
    def rise(self, examples: Batch, labels: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """How much more each example loses by other weights, float [B]; 0 without a label. In eval mode."""
        pixels, was_training = self.network_input(examples.images), self.net.training
        self.net.eval()
        try:
            before, after = (functional_call(self.net, given, (pixels,)) for given in ({}, weights))
        finally:
            self.net.train(was_training)
        return self.each_loss(after, examples, labels) - self.each_loss(before, examples, labels)

    def each_loss(self, logits: Tensor, examples: Batch, labels: Tensor) -> Tensor:
        restricted = self.restricted(logits, examples.task_ids)
        return F.cross_entropy(restricted, labels, ignore_index=UNLABELLED, reduction="none")

    def optimizers(self) -> dict[str, Optimizer]:
        return {"net": self.optimizer}


def num_before(slots: Tensor) -> Tensor:
    """How many earlier draws were of the same slot, int64 [B]."""
    return (slots[:, None] == slots[None, :]).tril(-1).sum(dim=1)


def highest(scores: Tensor, turn: Tensor, size: int) -> Tensor:
    """Rows of the highest scores, int64 [size]; a row of a later turn only where the earlier turns are used up.

    A memory that holds fewer than are drawn repeats them: without turns one example would fill the replay.
    """
    by_score = scores.argsort(descending=True, stable=True)
    return by_score[turn[by_score].argsort(stable=True)][:size]
