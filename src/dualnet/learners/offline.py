"""Offline: some epochs over the data of all tasks together. The upper bound, which a stream does not allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import SGD

from dualnet.batch import Batch, StreamSpec
from dualnet.learners.finetune import learn_labels
from dualnet.learners.learner import Learner
from dualnet.learners.options import TrainingOptions
from dualnet.nets import Classifier


@dataclass(frozen=True)
class Config(TrainingOptions):
    """The options of Offline. DualNet's paper gives the epochs alone: the rate is that of its baselines."""

    updates: int = 1  # gradient steps per batch
    epochs: int = 3  # passes over all tasks mixed together, each in an order of its own


class Offline(Learner):
    """The upper bound: every update minimises CE(batch), with batches from all tasks mixed together."""

    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.net = Classifier(config.width, spec.num_classes, spec.image_shape[0])
        self.optimizer = SGD(self.net.parameters(), lr=config.lr)

    @classmethod
    def epochs_over_all(cls, config: Any) -> int:
        return config.epochs

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.mask_logits(self.net(self.network_input(images)), task_ids)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        return learn_labels(self, self.net, self.optimizer, batch, self.config.updates)
