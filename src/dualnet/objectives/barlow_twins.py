"""Barlow Twins (Zbontar et al., 2021): the paper's equations 1 and 2."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.objectives.objective import EmbeddingObjective, ProjectorOptions

TRADE_OFF = 2e-3  # lambda_BT, the paper's appendix


@dataclass(frozen=True)
class Config(ProjectorOptions):
    """The options of Barlow Twins."""

    trade_off: float = TRADE_OFF  # lambda_BT: weight of the entries off the diagonal


class BarlowTwins(EmbeddingObjective):
    """The cross-correlation matrix of the embeddings of two views should be the identity."""

    Config = Config
    config: Config

    def loss(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        return barlow_twins_loss(z_a, z_b, self.config.trade_off)


def cross_correlation(z_a: Tensor, z_b: Tensor, eps: float = 1e-5) -> Tensor:
    """C_ij, float [D, D]: the correlation over the batch of feature i in one view with feature j in the other."""

    def standardised(z: Tensor) -> Tensor:
        return F.batch_norm(z, None, None, training=True, eps=eps)  # a fifth of the kernels of mean and variance

    return standardised(z_a).T @ standardised(z_b) / len(z_a)


def barlow_twins_loss(z_a: Tensor, z_b: Tensor, trade_off: float = TRADE_OFF) -> Tensor:
    """sum_i (1 - C_ii)^2 + trade_off * sum_{i != j} C_ij^2."""
    identity, weights = targets(z_a.shape[1], trade_off, z_a.device)
    return (weights * (cross_correlation(z_a, z_b) - identity).square()).sum()


@cache
def targets(num: int, trade_off: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """The target of C and the weight of each entry, float [D, D] each."""
    identity = torch.eye(num, device=device)
    return identity, torch.full_like(identity, trade_off).fill_diagonal_(1)
