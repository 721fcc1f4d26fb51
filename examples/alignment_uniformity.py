"""Alignment and uniformity (Wang and Isola, 2020): an objective in a file of its own, outside of the package.

Run it:

    PYTHONPATH=examples dualnet run demo-dualnet --learner.slow.objective alignment_uniformity.AlignmentUniformity
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.objectives import EmbeddingObjective, ProjectorOptions

EPS = 1e-4  # smallest norm that an embedding is divided by


@dataclass(frozen=True)
class Config(ProjectorOptions):
    """The options of alignment and uniformity."""

    uniformity: float = 1.0  # weight of the uniformity term
    scale: float = 2.0  # t of the Gaussian potential


class AlignmentUniformity(EmbeddingObjective):
    """Both views of an image should have the same embedding; those of all images should be spread over the sphere."""

    Config = Config
    config: Config

    def loss(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        z_a, z_b = F.normalize(z_a, dim=1, eps=EPS), F.normalize(z_b, dim=1, eps=EPS)
        alignment = (z_a - z_b).square().sum(dim=1).mean()
        uniformity = (self.potential(z_a) + self.potential(z_b)) / 2
        return alignment + self.config.uniformity * uniformity

    def potential(self, z: Tensor) -> Tensor:
        """The log of the mean of exp(-t |z_i - z_j|^2) over all pairs of the batch."""
        return torch.pdist(z).square().mul(-self.config.scale).exp().mean().log()
