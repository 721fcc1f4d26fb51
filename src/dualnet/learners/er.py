"""ER, experience replay (Chaudhry et al., 2019): every update joins the batch with examples from the memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from dualnet.batch import Batch, StreamSpec
from dualnet.image_ops import Augment
from dualnet.learners.learner import Learner
from dualnet.losses import label_loss
from dualnet.memory import MemoryConfig
from dualnet.nets import Classifier, two_batches
from dualnet.optim import descend
from dualnet.options import check_at_least, check_choices


@dataclass(frozen=True)
class Config:
    width: int = 20  # channels of the first stage; 64 is the full ResNet18
    lr: float = 0.03
    updates: int = 2  # gradient steps per batch
    replay_size: int = 10
    joint_statistics: bool = False  # one BatchNorm over batch and replay, for tasks that look different; else one each
    augment: Augment = "none"  # what an update sees of images: a random view (the paper's -Aug), or crop (task-free)
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    def __post_init__(self) -> None:
        check_at_least(self, 1, "width", "updates", "replay_size")
        check_at_least(self, 0, "lr")
        check_choices(self)


class ER(Learner):
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
        past = self.memory.sample(self.config.replay_size, self.generator, beside=batch).batch
        assert past.labels is not None
        now_pixels, past_pixels = self.training_input(batch.images), self.training_input(past.images)
        now_logits, past_logits = two_batches(self.net, now_pixels, past_pixels, self.config.joint_statistics)
        now_logits = self.restricted(now_logits, batch.task_ids)
        past_logits = self.restricted(past_logits, past.task_ids)
        now_loss, past_loss = label_loss(now_logits, labels), label_loss(past_logits, past.labels)
        descend(self.optimizer, now_loss + past_loss)
        return {"labels": now_loss.detach(), "replay": past_loss.detach()}

    def optimizers(self) -> dict[str, Optimizer]:
        return {"net": self.optimizer}
