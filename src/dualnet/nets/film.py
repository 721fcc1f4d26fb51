"""CTN's network (Pham et al., 2021): a controller that scales and shifts the last features by the task (FiLM)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualnet.batch import StreamSpec
from dualnet.nets.encoder import AnyEncoder, pooled
from dualnet.nets.head import Head


class Controller(nn.Module):
    """c(t): scale and shift of a task, float [B, channels] each and of length 1, from an embedding of the task."""

    def __init__(self, num_tasks: int, embedding_size: int, channels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tasks, embedding_size)
        self.film = nn.Linear(embedding_size, 2 * channels)

    def forward(self, task_ids: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self.film(self.embedding(task_ids)).float().chunk(2, dim=1)
        return of_length_1(scale), of_length_1(shift)

    def grow(self, spec: StreamSpec) -> list[nn.Parameter]:
        """Embeddings for all tasks of the spec. Those of the new ones are new rows of the same weight."""
        new = torch.randn(spec.num_tasks - self.embedding.num_embeddings, self.embedding.embedding_dim)
        self.embedding.weight.data = torch.cat([self.embedding.weight.data, new.to(self.embedding.weight)])
        self.embedding.num_embeddings = spec.num_tasks
        return []


def of_length_1(vectors: Tensor) -> Tensor:
    """Each row divided by its length; that is a constant to the gradient, as in the authors' code."""
    return vectors / vectors.norm(dim=1, keepdim=True).detach().clamp(min=1e-6)


class FilmClassifier(nn.Module):
    """The base: an encoder and a head, with features h that are relu(scale * h + shift) + relu(h).

    In the authors' code no ReLU follows a residual sum: h, the last of them, keeps its sign for the scale to use.
    """

    def __init__(self, encoder: AnyEncoder, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = Head(self.encoder.channels[-1], num_classes)

    def features(self, images: Tensor, parts: int = 1) -> Tensor:
        """h, float [B, channels, H, W]: what all tasks share."""
        return self.encoder(images, parts)[-1]

    def forward(self, features: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        adapted = F.relu(scale[:, :, None, None] * features + shift[:, :, None, None])
        return self.head(pooled(adapted + F.relu(features)))
