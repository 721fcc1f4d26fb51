"""BYOL (Grill et al., 2020): the paper's equations 1 and 2."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.batch import Batch, StreamSpec
from dualnet.nets import BaseEncoder, Encoder, forward_batches
from dualnet.objectives.objective import Objective, Projector, embed, full_precision

MOMENTUM = 0.99  # tau
EPS = 1e-4  # smallest norm that a vector is divided by


class BYOL(Objective):
    """The embedding of one view should predict the target network's embedding of the other.

    The target network, an encoder and a projector, is a moving average of the trained ones and gets no gradient. It is
    initialised at random instead of copied, as in the authors' code, since an objective gets the encoder only in calls.
    """

    def __init__(self, num_features: int, spec: StreamSpec) -> None:
        super().__init__(num_features, spec)
        self.projector = Projector(num_features)
        self.predictor = Projector(num_features)
        self.target_encoder = Encoder(num_features // 8).requires_grad_(False)  # the last map has 8 times the width
        self.target_projector = Projector(num_features).requires_grad_(False)

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
        torch._foreach_lerp_(target, online, 1 - MOMENTUM)  # pyright: ignore[reportPrivateImportUsage]


def byol_loss(p_a: Tensor, p_b: Tensor, target_a: Tensor, target_b: Tensor) -> Tensor:
    """|p_a - z'_b|^2 + |p_b - z'_a|^2 of unit vectors, averaged over the batch."""
    return squared_distance(p_a, target_b.detach()) + squared_distance(p_b, target_a.detach())


def squared_distance(p: Tensor, z: Tensor) -> Tensor:
    return (F.normalize(p, dim=1, eps=EPS) - F.normalize(z, dim=1, eps=EPS)).square().sum(dim=1).mean()
