"""Barlow Twins (Zbontar et al., 2021): the paper's equations 1 and 2."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.objectives.objective import EmbeddingObjective, ProjectorOptions

TRADE_OFF = 2e-3  # lambda_BT, the paper's appendix
EPS = 1e-12  # smallest variance or norm, where the authors and the paper have none

Correlation = Literal["population", "sample", "uncentred"]


@dataclass(frozen=True)
class Config(ProjectorOptions):
    """The options of Barlow Twins."""

    trade_off: float = TRADE_OFF  # lambda_BT: weight of the entries off the diagonal
    # The deviations have divisor B or, as in the authors' code, B - 1; uncentred is the paper's equation 2 as printed.
    correlation: Correlation = "population"  # the authors: sample; the paper: uncentred


class BarlowTwins(EmbeddingObjective):
    """The cross-correlation matrix of the embeddings of two views should be the identity."""

    Config = Config
    config: Config

    def loss(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        return barlow_twins_loss(z_a, z_b, self.config.trade_off, self.config.correlation)


def standardised(z: Tensor, eps: float = 1e-5) -> Tensor:
    """Mean 0 and deviation 1 over the batch, with divisor B."""
    return F.batch_norm(z, None, None, training=True, eps=eps)  # a fifth of the kernels of mean and variance


def cross_correlation(z_a: Tensor, z_b: Tensor, kind: Correlation = "population") -> Tensor:
    """C_ij, float [D, D]: the correlation over the batch of feature i in one view with feature j in the other."""
    if kind == "uncentred":
        return F.normalize(z_a, dim=0, eps=EPS).T @ F.normalize(z_b, dim=0, eps=EPS)
    if kind == "sample":  # two deviations with divisor B - 1, and a mean over B products
        return standardised(z_a, EPS).T @ standardised(z_b, EPS) * ((len(z_a) - 1) / len(z_a) ** 2)
    return standardised(z_a).T @ standardised(z_b) / len(z_a)


def barlow_twins_loss(
    z_a: Tensor, z_b: Tensor, trade_off: float = TRADE_OFF, kind: Correlation = "population"
) -> Tensor:
    """sum_i (1 - C_ii)^2 + trade_off * sum_{i != j} C_ij^2."""
    identity, weights = targets(z_a.shape[1], trade_off, z_a.device)
    return (weights * (cross_correlation(z_a, z_b, kind) - identity).square()).sum()


@cache
def targets(num: int, trade_off: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """The target of C and the weight of each entry, float [D, D] each."""
    identity = torch.eye(num, device=device)
    return identity, torch.full_like(identity, trade_off).fill_diagonal_(1)
