"""VICReg (Bardes, Ponce and LeCun, 2022): the paper's equations 1 to 6, averaged as in its algorithm 1."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from dualnet.objectives.objective import EmbeddingObjective, ProjectorOptions

EPS = 1e-4


@dataclass(frozen=True)
class Config(ProjectorOptions):
    """The options of VICReg."""

    invariance: float = 25.0  # lambda: weight of the difference of the views
    variance: float = 25.0  # mu: weight of the variance term
    covariance: float = 1.0  # nu: weight of the covariance term
    std: float = 1.0  # gamma: target standard deviation of each feature


DEFAULTS = Config()


class VICReg(EmbeddingObjective):
    """Embeddings of both views should agree; features should vary over the batch and be uncorrelated."""

    Config = Config
    config: Config

    def loss(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        return vicreg_loss(z_a, z_b, self.config)


def vicreg_loss(z_a: Tensor, z_b: Tensor, config: Config = DEFAULTS) -> Tensor:
    """lambda s(Z, Z') + mu (v(Z) + v(Z')) + nu (c(Z) + c(Z'))."""
    variance = variance_term(z_a, config.std) + variance_term(z_b, config.std)
    covariance = covariance_term(z_a) + covariance_term(z_b)
    return config.invariance * F.mse_loss(z_a, z_b) + config.variance * variance + config.covariance * covariance


def variance_term(z: Tensor, std: float = DEFAULTS.std) -> Tensor:
    """v, the mean over the features of max(0, gamma - sqrt(var + eps))."""
    return F.relu(std - (z.var(dim=0) + EPS).sqrt()).mean()


def covariance_term(z: Tensor) -> Tensor:
    """c, the sum of C_ij^2 over i != j by the number of features; C the covariance over the batch, [D, D]."""
    centred = z - z.mean(dim=0)
    covariance = centred.T @ centred / (len(z) - 1)
    return (covariance.square().sum() - covariance.diagonal().square().sum()) / z.shape[1]
