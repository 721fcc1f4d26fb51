"""SimSiam (Chen and He, 2021): the paper's equations 1 to 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from dualnet.batch import Batch, StreamSpec
from dualnet.nets import BaseEncoder, forward_batches
from dualnet.objectives.objective import Objective, Projector, ProjectorOptions, embed, full_precision

BOTTLENECK = 4  # by default the hidden layer of the predictor has a quarter of the features, as in the paper
EPS = 1e-4  # smallest norm that a vector is divided by


@dataclass(frozen=True)
class Config(ProjectorOptions):
    """The options of SimSiam."""

    predictor_hidden: int | None = None  # features of the predictor's hidden layer; None: a quarter of its input


class SimSiam(Objective):
    """The embedding of one view should predict that of the other, which is a constant for the gradient."""

    Config = Config
    config: Config

    def __init__(self, num_features: int, spec: StreamSpec, config: Any = None) -> None:
        super().__init__(num_features, spec, config)
        self.projector = Projector(num_features, self.config.projector_hidden)
        self.predictor = Projector(num_features, self.config.predictor_hidden or num_features // BOTTLENECK)

    def forward(self, encoder: BaseEncoder, view_a: Tensor, view_b: Tensor, batch: Batch) -> Tensor:
        z_a, z_b = embed(encoder, self.projector, view_a, view_b)
        p_a, p_b = forward_batches(self.predictor, [z_a, z_b])
        with full_precision(z_a.device):
            return simsiam_loss(p_a.float(), p_b.float(), z_a, z_b)


def simsiam_loss(p_a: Tensor, p_b: Tensor, z_a: Tensor, z_b: Tensor) -> Tensor:
    """D(p_a, stop(z_b)) / 2 + D(p_b, stop(z_a)) / 2."""
    return (negative_cosine(p_a, z_b.detach()) + negative_cosine(p_b, z_a.detach())) / 2


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """D, the mean over the batch of -cos(p, z)."""
    return -(F.normalize(p, dim=1, eps=EPS) * F.normalize(z, dim=1, eps=EPS)).sum(dim=1).mean()
