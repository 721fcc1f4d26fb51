"""Barlow Twins (Zbontar et al., 2021): the paper's equations 1 and 2."""

from __future__ import annotations

from torch import Tensor

from dualnet.batch import Batch, StreamSpec
from dualnet.nets import Encoder
from dualnet.objectives.objective import Objective, Projector, embed, full_precision

TRADE_OFF = 2e-3  # lambda_BT, the paper's appendix


class BarlowTwins(Objective):
    """The cross-correlation of two views' embeddings should be the identity."""

    def __init__(self, num_features: int, spec: StreamSpec) -> None:
        super().__init__(num_features, spec)
        self.projector = Projector(num_features)

    def forward(self, encoder: Encoder, view_a: Tensor, view_b: Tensor, batch: Batch) -> Tensor:
        z_a, z_b = embed(encoder, self.projector, view_a, view_b)
        with full_precision(z_a.device):
            return barlow_twins_loss(z_a, z_b)


def cross_correlation(z_a: Tensor, z_b: Tensor, eps: float = 1e-5) -> Tensor:
    """C_ij, float [D, D]: the correlation over the batch of feature i in one view with feature j in the other."""

    def standardised(z: Tensor) -> Tensor:
        return (z - z.mean(dim=0)) / (z.var(dim=0, correction=0) + eps).sqrt()

    return standardised(z_a).T @ standardised(z_b) / len(z_a)


def barlow_twins_loss(z_a: Tensor, z_b: Tensor, trade_off: float = TRADE_OFF) -> Tensor:
    """sum_i (1 - C_ii)^2 + trade_off * sum_{i != j} C_ij^2."""
    correlation = cross_correlation(z_a, z_b)
    diagonal = correlation.diagonal()
    off_diagonal = correlation.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + trade_off * off_diagonal
