"""Offline: some epochs over all data of all tasks together. The upper bound, which a stream does not allow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from dualnet.batch import Batch, StreamSpec
from dualnet.image_ops import Augment
from dualnet.learners.finetune import learn_labels
from dualnet.learners.learner import Learner
from dualnet.nets import Classifier
from dualnet.options import check_at_least, check_choices


@dataclass(frozen=True)
class Config:
    """DualNet's paper gives the epochs alone: the rate is that of its baselines."""

    width: int = 20  # channels of the first stage; 64 is the full ResNet18
    lr: float = 0.03
    updates: int = 1  # gradient steps per batch
    augment: Augment = "none"  # what an update sees of images: a random view (the paper's -Aug), or crop (task-free)
    epochs: int = 3  # passes over all tasks mixed together, each in an order of its own

    def __post_init__(self) -> None:
        check_at_least(self, 1, "width", "updates", "epochs")
        check_at_least(self, 0, "lr")
        check_choices(self)


class Offline(Learner):
    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.net = Classifier(config.width, spec.num_classes, spec.image_shape[0])
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=config.lr)

    @property
    def epochs_over_all(self) -> int:
        return self.config.epochs

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.restricted(self.net(self.network_input(images)), task_ids)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        return learn_labels(self, self.net, self.optimizer, batch, self.config.updates)

    def optimizers(self) -> dict[str, Optimizer]:
        return {"net": self.optimizer}
