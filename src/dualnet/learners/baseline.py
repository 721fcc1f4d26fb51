"""The common part of the baselines: a classifier trained by several SGD updates on each batch."""

from abc import abstractmethod
from typing import Any

from torch import Tensor

from dualnet.batch import Batch, StreamSpec
from dualnet.learners.learner import Learner
from dualnet.learners.make_encoder import make_encoder, parameter_groups
from dualnet.nets import Classifier
from dualnet.optim import SGD


class Baseline(Learner):
    """Abstract. Subclasses implement `update`, and `store` if they have a memory."""

    def __init__(self, spec: StreamSpec, config: Any) -> None:
        super().__init__(spec, config)
        self.net = Classifier(make_encoder(spec, config), spec.num_classes, getattr(config, "heads", "last"))
        self.optimizer = SGD(parameter_groups(self.net.parameters(), self.net.encoder, config), lr=config.lr)

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.mask_logits(self.of_heads(self.net(self.network_input(images))), task_ids)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        labels = self.labels_to_learn(batch)
        if labels is None:
            return {}
        self.store(batch)
        return [self.update(batch, labels) for _ in range(self.config.updates)][-1]

    def store(self, batch: Batch) -> None:
        """Offer the batch to the memory, before the updates as in the authors' code."""

    @abstractmethod
    def update(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        """One gradient step. Returns its losses."""
