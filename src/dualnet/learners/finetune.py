"""Finetune: SGD on the stream alone, without a memory. The lower bound, which shows how much is forgotten."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from dualnet.batch import Batch, StreamSpec
from dualnet.learners.learner import Learner
from dualnet.learners.options import TrainingOptions
from dualnet.losses import label_loss
from dualnet.nets import Classifier
from dualnet.optim import gradient_step


@dataclass(frozen=True)
class Config(TrainingOptions):
    """The options of Finetune."""


class Finetune(Learner):
    """The lower bound: every update minimises CE(batch), and nothing is stored."""

    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.net = Classifier(config.width, spec.num_classes, spec.image_shape[0])
        self.optimizer = SGD(self.net.parameters(), lr=config.lr)

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.mask_logits(self.net(self.network_input(images)), task_ids)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        return learn_labels(self, self.net, self.optimizer, batch, self.config.updates)


def learn_labels(
    learner: Learner, net: nn.Module, optimizer: Optimizer, batch: Batch, updates: int
) -> dict[str, Tensor]:
    """Some steps on the cross-entropy of a batch; none if it has no labels. Returns the loss of the last step."""
    losses: dict[str, Tensor] = {}
    if batch.labels is not None:
        for _ in range(updates):
            loss = label_loss(learner.batch_logits(net, batch)[0], batch.labels)
            gradient_step(optimizer, loss)
            losses = {"labels": loss.detach()}
    return losses
