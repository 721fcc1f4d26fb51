"""The baselines' network: an encoder and one linear head over all classes."""

import torch
from torch import Tensor, nn

from dualnet.batch import StreamSpec, change_rows
from dualnet.nets.encoder import BaseEncoder, pooled


class Head(nn.Linear):
    """The logits of all classes."""

    def reset_parameters(self) -> None:
        if self.out_features > 0:  # PyTorch warns about empty weights
            super().reset_parameters()

    def change_classes(self, spec: StreamSpec, removed: int | None = None) -> None:
        """Delete the row of the removed class, and append freshly initialised rows of new ones."""
        num_kept = self.out_features - (removed is not None)
        new = Head(self.in_features, spec.num_classes - num_kept).to(self.weight)
        for own, added in zip(self.parameters(), new.parameters(), strict=True):
            own.data = torch.cat([change_rows(own.data, num_kept, removed), added.data])
        self.out_features = spec.num_classes


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
