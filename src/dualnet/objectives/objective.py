"""The base class of the slow learner's objectives, and the pass through the encoder that they share."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dualnet.batch import Batch, StreamSpec
from dualnet.nets import AnyEncoder, BatchNorm, forward_batches, pooled


class Objective(nn.Module, ABC):
    """A loss on two views of the same images. Owns its heads; gets the encoder with every call and does not keep it."""

    def __init__(self, num_features: int, spec: StreamSpec) -> None:  # channels of the encoder's last map; the stream
        super().__init__()

    @abstractmethod
    def forward(self, encoder: AnyEncoder, view_a: Tensor, view_b: Tensor, batch: Batch) -> Tensor:
        """The loss, a scalar, from views float [B, C, H, W] of the batch's B images, whose labels are never None."""


class Projector(nn.Module):
    """Linear, BatchNorm, ReLU, Linear without biases, as in the authors' code: num_features -> 256 -> num_features."""

    def __init__(self, num_features: int, hidden: int = 256) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_features, hidden, bias=False)
        self.norm = BatchNorm(hidden)
        self.out = nn.Linear(hidden, num_features, bias=False)

    def forward(self, features: Tensor, parts: int = 1) -> Tensor:
        return self.out(self.norm(self.hidden(features), parts))


Head = Callable[[Tensor, int], Tensor]  # (features [parts * B, num_features], parts) -> [parts * B, D]


def embed(encoder: AnyEncoder, head: Head, view_a: Tensor, view_b: Tensor) -> tuple[Tensor, Tensor]:
    """Both views through encoder and head, each with its own BatchNorm statistics; float32 [B, D] each."""

    def net(images: Tensor, parts: int) -> Tensor:
        return head(pooled(encoder(images, parts)[-1]), parts)

    z_a, z_b = forward_batches(net, [view_a, view_b])
    return z_a.float(), z_b.float()


class EmbeddingObjective(Objective):
    """A loss on the embeddings of both views by encoder and projector."""

    def __init__(self, num_features: int, spec: StreamSpec) -> None:
        super().__init__(num_features, spec)
        self.projector = Projector(num_features)

    def forward(self, encoder: AnyEncoder, view_a: Tensor, view_b: Tensor, batch: Batch) -> Tensor:
        z_a, z_b = embed(encoder, self.projector, view_a, view_b)
        with full_precision(z_a.device):
            return self.loss(z_a, z_b)

    @abstractmethod
    def loss(self, z_a: Tensor, z_b: Tensor) -> Tensor: ...


def full_precision(device: torch.device) -> torch.autocast:
    """For a loss that must not be rounded to bfloat16."""
    return torch.autocast(device.type, enabled=False)
