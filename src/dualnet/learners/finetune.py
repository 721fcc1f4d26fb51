"""Finetune: learn what comes, keep nothing. The lower bound that shows how much a stream makes forget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dualnet.batch import Batch, StreamSpec
from dualnet.image_ops import Augment
from dualnet.learners.learner import Learner
from dualnet.losses import label_loss
from dualnet.nets import Classifier
from dualnet.optim import descend
from dualnet.options import check_at_least, check_choices


@dataclass(frozen=True)
class Config:
    width: int = 20  # channels of the first stage; 64 is the full ResNet18
    lr: float = 0.03
    updates: int = 2  # gradient steps per batch
    augment: Augment = "none"  # what an update sees of images: a random view (the paper's -Aug), or crop (task-free)

    def __post_init__(self) -> None:
        check_at_least(self, 1, "width", "updates")
        check_at_least(self, 0, "lr")
        check_choices(self)


class Finetune(Learner):
    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.net = Classifier(config.width, spec.num_classes, spec.image_shape[0])
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=config.lr)

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.restricted(self.net(self.network_input(images)), task_ids)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        return learn_labels(self, self.net, self.optimizer, batch, self.config.updates)

    def optimizers(self) -> dict[str, Optimizer]:
        return {"net": self.optimizer}


def learn_labels(
    learner: Learner, net: nn.Module, optimizer: Optimizer, batch: Batch, updates: int
) -> dict[str, Tensor]:
    """Some steps on the cross-entropy of a batch; none where it has no labels. The loss of the last one."""
    losses: dict[str, Tensor] = {}
    if batch.labels is not None:
        for _ in range(updates):
            logits = learner.restricted(net(learner.training_input(batch.images)), batch.task_ids)
            loss = label_loss(logits, batch.labels)
            descend(optimizer, loss)
            losses = {"labels": loss.detach()}
    return losses
