"""BYOL (Grill et al., 2020): the paper's equations 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.batch import Batch, StreamSpec
from dualnet.nets import BaseEncoder, Encoder, forward_batches
from dualnet.objectives.objective import Objective, Projector, ProjectorOptions, embed, full_precision
from dualnet.options import check_at_least

EPS = 1e-4  # smallest norm that a vector is divided by


@dataclass(frozen=True)
class Config(ProjectorOptions):
    """The options of BYOL."""

    predictor_hidden: int = ProjectorOptions.projector_hidden  # features of the predictor's hidden layer
    momentum: float = 0.99  # tau: what remains of the target network in each step

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, "momentum", most=1)


class BYOL(Objective):
    """The embedding of one view should predict the target network's embedding of the other.

    The target network, an encoder and a projector, is a moving average of the trained ones and gets no gradient. It is
    initialised at random instead of copied, as in the authors' code, since an objective gets the encoder only in calls.
    """

    Config = Config
    config: Config
    needs_built_in_encoder = True

    def __init__(self, num_features: int, spec: StreamSpec, config: Any = None) -> None:
        super().__init__(num_features, spec, config)
        self.projector = Projector(num_features, self.config.projector_hidden)
        self.predictor = Projector(num_features, self.config.predictor_hidden)
        self.target_encoder = Encoder(num_features // 8).requires_grad_(False)  # the last map has 8 times the width
        self.target_projector = Projector(num_features, self.config.projector_hidden).requires_grad_(False)

    def forward(self, encoder: BaseEncoder, view_a: Tensor, view_b: Tensor, batch: Batch) -> Tensor:
        self.update_target(encoder)
        p_a, p_b = forward_batches(self.predictor, embed(encoder, self.projector, view_a, view_b))
        with torch.no_grad():
            target_a, target_b = embed(self.target_encoder, self.target_projector, view_a, view_b)
        with full_precision(p_a.device):
            return byol_loss(p_a.float(), p_b.float(), target_a, target_b)

    @torch.no_grad()
    def update_target(self, encoder: BaseEncoder) -> None:
        """target <- tau target + (1 - tau) online. Called before the loss, so it follows the previous step."""
        target: list[Tensor] = [*self.target_encoder.parameters(), *self.target_projector.parameters()]
        online: list[Tensor] = [*encoder.parameters(), *self.projector.parameters()]
        torch._foreach_lerp_(target, online, 1 - self.config.momentum)  # pyright: ignore[reportPrivateImportUsage]


def byol_loss(p_a: Tensor, p_b: Tensor, target_a: Tensor, target_b: Tensor) -> Tensor:
    """|p_a - z'_b|^2 + |p_b - z'_a|^2 of unit vectors, averaged over the batch."""
    return squared_distance(p_a, target_b.detach()) + squared_distance(p_b, target_a.detach())


def squared_distance(p: Tensor, z: Tensor) -> Tensor:
    return (F.normalize(p, dim=1, eps=EPS) - F.normalize(z, dim=1, eps=EPS)).square().sum(dim=1).mean()
