"""VICReg (Bardes, Ponce and LeCun, 2022): the paper's equations 1 to 6, averaged as in its algorithm 1."""

import torch.nn.functional as F
from torch import Tensor

from dualnet.objectives.objective import EmbeddingObjective

INVARIANCE = 25.0  # lambda
VARIANCE = 25.0  # mu
COVARIANCE = 1.0  # nu
STD = 1.0  # gamma, target standard deviation of each feature
EPS = 1e-4


class VICReg(EmbeddingObjective):
    """Embeddings of both views should agree; features should vary over the batch and be uncorrelated."""

    def loss(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        return vicreg_loss(z_a, z_b)


def vicreg_loss(z_a: Tensor, z_b: Tensor) -> Tensor:
    """lambda s(Z, Z') + mu (v(Z) + v(Z')) + nu (c(Z) + c(Z'))."""
    variance, covariance = variance_term(z_a) + variance_term(z_b), covariance_term(z_a) + covariance_term(z_b)
    return INVARIANCE * F.mse_loss(z_a, z_b) + VARIANCE * variance + COVARIANCE * covariance


def variance_term(z: Tensor) -> Tensor:
    """v, the mean over the features of max(0, gamma - sqrt(var + eps))."""
    return F.relu(STD - (z.var(dim=0) + EPS).sqrt()).mean()


def covariance_term(z: Tensor) -> Tensor:
    """c, the sum of C_ij^2 over i != j by the number of features; C the covariance over the batch, [D, D]."""
    centred = z - z.mean(dim=0)
    covariance = centred.T @ centred / (len(z) - 1)
    return (covariance.square().sum() - covariance.diagonal().square().sum()) / z.shape[1]
