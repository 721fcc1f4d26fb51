"""SimCLR (Chen et al., 2020): the paper's equation 1, NT-Xent."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.objectives.barlow_twins import EPS as SMALLEST_VARIANCE
from dualnet.objectives.barlow_twins import standardised
from dualnet.objectives.objective import EmbeddingObjective, ProjectorOptions
from dualnet.options import check_at_least

TEMPERATURE = 0.5  # tau, as in the authors' command for CIFAR-10; theirs for ImageNet: 0.1
EPS = 1e-4  # smallest norm that an embedding is divided by


@dataclass(frozen=True)
class Config(ProjectorOptions):
    """The options of SimCLR."""

    similarity: Literal["cosine", "standardised"] = "cosine"  # DualNet's authors: products of standardised embeddings
    temperature: float = TEMPERATURE  # tau; DualNet's authors: 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1e-6, "temperature")


class SimCLR(EmbeddingObjective):
    """Each embedding should identify the other view of its image among all embeddings of the batch."""

    Config = Config
    config: Config

    def loss(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        loss = nt_xent_loss if self.config.similarity == "cosine" else standardised_loss
        return loss(z_a, z_b, self.config.temperature)


def nt_xent_loss(z_a: Tensor, z_b: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Mean over the 2B embeddings of -log(exp(s_ij / tau) / sum_{k != i} exp(s_ik / tau)), j the other view of i."""
    z = F.normalize(torch.cat([z_a, z_b]), dim=1, eps=EPS)  # [2B, D]
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    logits = (z @ z.T / temperature).masked_fill(itself, float("-inf"))
    other_view = torch.arange(len(z), device=z.device).roll(len(z_a))
    return F.cross_entropy(logits, other_view)


def standardised_loss(z_a: Tensor, z_b: Tensor, temperature: float) -> Tensor:
    """The form of DualNet's authors: s_ij is the product of embeddings of which each feature is standardised over its
    view, with divisor B - 1, and the sum includes k = i."""
    scale = (1 - 1 / len(z_a)) ** 0.5  # from divisor B to B - 1
    z = torch.cat([standardised(view, SMALLEST_VARIANCE) for view in (z_a, z_b)]) * scale
    other_view = torch.arange(len(z), device=z.device).roll(len(z_a))
    return F.cross_entropy(z @ z.T / temperature, other_view)
