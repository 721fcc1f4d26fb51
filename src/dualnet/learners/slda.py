"""Streaming LDA (Hayes and Kanan, 2020): linear discriminant analysis on the last features of a frozen encoder."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dualnet.batch import Batch, StreamSpec
from dualnet.learners.learner import Learner
from dualnet.learners.make_encoder import make_encoder
from dualnet.learners.shared_options import CommonOptions, EncoderOptions
from dualnet.nets import ClosedForm, pooled
from dualnet.options import check_at_least


@dataclass(frozen=True)
class FrozenEncoder(EncoderOptions):
    """An encoder that is not trained; `weights` decides how good the learner is."""

    lr: float | None = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr != 0:
            raise ValueError(f"lr: {self.lr} would train an encoder that this learner freezes; use 0")


@dataclass(frozen=True)
class Config(CommonOptions):
    """The options of SLDA."""

    encoder: FrozenEncoder = field(default_factory=FrozenEncoder)
    shrinkage: float = 1e-4  # epsilon, the share of the identity in the covariance

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, "shrinkage", most=1)


class SLDA(Learner):
    """Deep streaming LDA (Hayes and Kanan, Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis).

    Class means and one covariance, updated by each example. The covariance is that of the examples around the means
    of their classes; the paper updates it by the mean as it was before the example.
    """

    Config = Config

    def __init__(self, spec: StreamSpec, config: Any) -> None:
        super().__init__(spec, config)
        self.encoder = make_encoder(spec, config)
        self.head = StreamingLDA(self.encoder.channels[-1], spec.num_classes, config.shrinkage)
        self.capturable = False  # as for DualNet with a closed-form head

    def features(self, images: Tensor) -> Tensor:
        """Only the last map, as in the paper."""
        with torch.no_grad(), self.mode(training=False):
            return pooled(self.encoder(self.network_input(images))[-1])

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.mask_logits(self.head.logits(self.features(images)), task_ids)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        self.add_to_sums(self.head, batch)
        return {}


class StreamingLDA(ClosedForm):
    """With the paper's covariance, and means without a prior."""

    prior = 0.0

    def __init__(self, num_features: int, num_classes: int, shrinkage: float) -> None:
        super().__init__(num_features, num_classes)
        self.shrinkage, self.independent = shrinkage, 0

    def covariance(self, centered: Tensor) -> Tensor:
        identity = torch.eye(len(self.scatter), dtype=torch.float64, device=self.scatter.device)
        covariance = self.scatter / self.counts.sum().clamp(min=1)
        return (1 - self.shrinkage) * covariance + self.shrinkage * identity
