"""CTN's network (Pham et al., 2021): a controller scales and shifts the last features for each task (FiLM)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualnet.batch import StreamSpec


class Controller(nn.Module):
    """Maps task ids to scale and shift, unit vectors float [B, channels] each, by an embedding of the task."""

    def __init__(self, num_tasks: int, embedding_size: int, channels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tasks, embedding_size)
        self.film = nn.Linear(embedding_size, 2 * channels)

    def forward(self, task_ids: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self.film(self.embedding(task_ids)).float().chunk(2, dim=1)
        return unit_vectors(scale), unit_vectors(shift)

    def change_classes(self, spec: StreamSpec, removed: int | None = None) -> None:
        """Append an embedding for each new task. The tasks of a removed class stay."""
        new = torch.randn(spec.num_tasks - self.embedding.num_embeddings, self.embedding.embedding_dim)
        self.embedding.weight.data = torch.cat([self.embedding.weight.data, new.to(self.embedding.weight)])
        self.embedding.num_embeddings = spec.num_tasks


def unit_vectors(vectors: Tensor) -> Tensor:
    """Each row divided by its length, which is a constant for the gradient as in the authors' code."""
    return vectors / vectors.norm(dim=1, keepdim=True).detach().clamp(min=1e-6)


def film(features: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """relu(scale * h + shift) + relu(h), of features h, float [B, channels, H, W]."""
    return F.relu(scale[:, :, None, None] * features + shift[:, :, None, None]) + F.relu(features)
