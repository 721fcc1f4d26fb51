"""The base class of the slow learner's objectives, and the forward pass that they share."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dualnet.batch import Batch, StreamSpec
from dualnet.nets import BaseEncoder, BatchNorm, forward_batches, pooled
from dualnet.options import check_fields


@dataclass(frozen=True)
class NoOptions:
    """The Config of an objective without options."""


class Objective(nn.Module, ABC):
    """A loss on two views of the same images. Owns its heads; the encoder is an argument of each call."""

    Config: ClassVar[type] = NoOptions  # a frozen dataclass: the options, all with defaults
    config: Any
    needs_built_in_encoder: ClassVar[bool] = False  # whether it works with the built-in encoder only

    def __init__(self, num_features: int, spec: StreamSpec, config: Any = None) -> None:
        """`num_features`: channels of the encoder's last map. `config`: a Config; None: the defaults."""
        super().__init__()
        self.config = self.Config() if config is None else config

    @abstractmethod
    def forward(self, encoder: BaseEncoder, view_a: Tensor, view_b: Tensor, batch: Batch) -> Tensor:
        """The scalar loss of two views, float [B, C, H, W], of the images of a batch, whose labels are not None."""


@dataclass(frozen=True)
class ProjectorOptions:
    """The options of an objective with a projector."""

    projector_hidden: int = 256  # features of the projector's hidden layer

    def __post_init__(self) -> None:
        check_fields(self)


class Projector(nn.Module):
    """Linear, BatchNorm, ReLU, Linear, no biases, as in the authors' code: num_features -> hidden -> num_features."""

    def __init__(self, num_features: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_features, hidden, bias=False)
        self.norm = BatchNorm(hidden)
        self.out = nn.Linear(hidden, num_features, bias=False)

    def forward(self, features: Tensor, parts: int = 1) -> Tensor:
        return self.out(self.norm(self.hidden(features), parts))


HeadFunction = Callable[[Tensor, int], Tensor]  # (features [parts * B, num_features], parts) -> [parts * B, D]


def embed(encoder: BaseEncoder, head: HeadFunction, view_a: Tensor, view_b: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings of both views, float32 [B, D] each, with separate BatchNorm statistics."""

    def net(images: Tensor, parts: int) -> Tensor:
        return head(pooled(encoder(images, parts)[-1]), parts)

    z_a, z_b = forward_batches(net, [view_a, view_b])
    return z_a.float(), z_b.float()


class EmbeddingObjective(Objective):
    """A loss on the embeddings of both views by the encoder and a projector. Its Config inherits ProjectorOptions."""

    Config = ProjectorOptions

    def __init__(self, num_features: int, spec: StreamSpec, config: Any = None) -> None:
        super().__init__(num_features, spec, config)
        self.projector = Projector(num_features, self.config.projector_hidden)

    def forward(self, encoder: BaseEncoder, view_a: Tensor, view_b: Tensor, batch: Batch) -> Tensor:
        z_a, z_b = embed(encoder, self.projector, view_a, view_b)
        with full_precision(z_a.device):
            return self.loss(z_a, z_b)

    @abstractmethod
    def loss(self, z_a: Tensor, z_b: Tensor) -> Tensor: ...


def full_precision(device: torch.device) -> torch.autocast:
    """Disables autocast, for losses that must not be rounded to bfloat16."""
    return torch.autocast(device.type, enabled=False)
