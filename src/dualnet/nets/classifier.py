"""The baselines' network: an encoder and one linear head over all classes, to which classes can be added."""

import torch
from torch import Tensor, nn

from dualnet.batch import StreamSpec
from dualnet.nets.encoder import BaseEncoder, pooled


class Head(nn.Linear):
    """The logits of all classes. Each addition of classes has its own weight matrix.

    With a single larger matrix the logits of the existing classes would be rounded differently.
    """

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.added = nn.ModuleList()
        self.num_classes = num_classes

    def reset_parameters(self) -> None:
        if self.out_features > 0:  # PyTorch warns about empty weights
            super().reset_parameters()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, the name in nn.Linear
        logits = super().forward(input)
        return torch.cat([logits, *(block(input) for block in self.added)], dim=1) if self.added else logits

    def grow(self, spec: StreamSpec) -> None:
        """Add the new classes of the spec."""
        self.added.append(nn.Linear(self.in_features, spec.num_classes - self.num_classes).to(self.weight))
        self.num_classes = spec.num_classes


class Classifier(nn.Module):
    def __init__(self, encoder: BaseEncoder, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = Head(self.encoder.channels[-1], num_classes)

    def features(self, images: Tensor, parts: int = 1) -> Tensor:
        """The last map of the encoder, float [B, channels, H, W]."""
        return self.encoder(images, parts)[-1]

    def forward(self, images: Tensor, parts: int = 1) -> Tensor:
        return self.head(pooled(self.features(images, parts)))
