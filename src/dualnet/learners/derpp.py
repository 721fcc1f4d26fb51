"""DER++ (Buzzega et al., 2020): replay that holds on to labels, and to what was answered when it was stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from dualnet.batch import Batch, StreamSpec
from dualnet.image_ops import Augment
from dualnet.learners.learner import MASKED, Learner
from dualnet.losses import label_loss
from dualnet.memory import MemoryConfig
from dualnet.nets import Classifier, two_batches
from dualnet.optim import descend
from dualnet.options import check_at_least, check_choices


@dataclass(frozen=True)
class Config:
    """DualNet's paper gives no values for DER++: those of ER, and weights from the range of Buzzega et al."""

    width: int = 20  # channels of the first stage; 64 is the full ResNet18
    lr: float = 0.03
    updates: int = 2  # gradient steps per batch
    replay_size: int = 10  # of each of the two draws
    logit_weight: float = 0.1  # alpha, of the distance to the stored logits; Buzzega et al.: 0.1 to 1
    replay_weight: float = 0.5  # beta, of the labels of the second draw; Buzzega et al.: 0.5 to 1
    joint_statistics: bool = False  # one BatchNorm over batch and replay, for tasks that look different; else one each
    augment: Augment = "none"  # what an update sees of images: a random view (the paper's -Aug), or crop (task-free)
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    def __post_init__(self) -> None:
        check_at_least(self, 1, "width", "updates", "replay_size")
        check_at_least(self, 0, "lr", "logit_weight", "replay_weight")
        check_choices(self)


class DERpp(Learner):
    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.net = Classifier(config.width, spec.num_classes, spec.image_shape[0])
        self.memory = config.memory.make(spec, with_logits=True)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=config.lr)

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.restricted(self.net(self.network_input(images)), task_ids)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        if batch.labels is not None:
            self.memory.add(batch, self.generator, self.answer(batch.images, batch.task_ids))
            for _ in range(self.config.updates):
                losses = self.update(batch, batch.labels)
        return losses

    def update(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        """One step on L(batch) + alpha |logits - stored logits|^2 + beta L(replay), on two draws of their own."""
        dark = self.memory.sample(self.config.replay_size, self.generator, beside=batch)
        past = self.memory.sample(self.config.replay_size, self.generator, beside=batch).batch
        assert past.labels is not None
        now_logits, dark_logits, past_logits = self.three_batches(batch, dark.batch, past)
        now_loss, past_loss = label_loss(now_logits, labels), label_loss(past_logits, past.labels)
        dark_loss = logit_loss(dark_logits, dark.logits, dark.has_logits)
        descend(self.optimizer, now_loss + self.config.logit_weight * dark_loss + self.config.replay_weight * past_loss)
        return {"labels": now_loss.detach(), "logits": dark_loss.detach(), "replay": past_loss.detach()}

    def three_batches(self, now: Batch, dark: Batch, past: Batch) -> list[Tensor]:
        """The logits of each, normalised by its own statistics, or jointly as one batch."""
        batches = (now, dark, past)
        pixels = [self.training_input(batch.images) for batch in batches]
        if self.config.joint_statistics or len(now) == len(dark):
            out = self.net(torch.cat(pixels), 1 if self.config.joint_statistics else 3)
            logits = out.split([len(batch) for batch in batches])
        else:
            logits = (self.net(pixels[0]), *two_batches(self.net, pixels[1], pixels[2]))
        return [self.restricted(each, batch.task_ids) for each, batch in zip(logits, batches, strict=True)]

    def optimizers(self) -> dict[str, Optimizer]:
        return {"net": self.optimizer}


def logit_loss(logits: Tensor, remembered: Tensor, known: Tensor) -> Tensor:
    """The mean squared difference, over the examples whose answer is known and the classes their task may answer."""
    counts = known[:, None] & (logits != MASKED)
    difference = (logits - remembered).masked_fill(~counts, 0)
    return difference.square().sum() / counts.sum().clamp(min=1)
