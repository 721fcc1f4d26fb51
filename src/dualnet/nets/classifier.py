"""The baselines' network: an encoder and one linear head over all classes, to which classes can be added."""

import torch
from torch import Tensor, nn

from dualnet.batch import StreamSpec
from dualnet.nets.encoder import BaseEncoder, pooled


class Head(nn.Linear):
    """The logits of all classes. Each addition of classes has its own weight matrix.

    With a single larger matrix the logits of the existing classes would be rounded differently, and with a smaller one
    too: the rows of a class that is removed stay, and only their outputs are left out.
    """

    columns: Tensor | None  # int64 [classes]: the outputs of the classes; None: all

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.added = nn.ModuleList()
        self.num_classes = num_classes
        self.register_buffer("columns", None, persistent=False)

    def reset_parameters(self) -> None:
        if self.out_features > 0:  # PyTorch warns about empty weights
            super().reset_parameters()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, the name in nn.Linear
        logits = super().forward(input)
        logits = torch.cat([logits, *(block(input) for block in self.added)], dim=1) if self.added else logits
        return logits if self.columns is None else logits.index_select(1, self.columns)

    def grow(self, spec: StreamSpec) -> None:
        """Add the new classes of the spec."""
        new = spec.num_classes - self.num_classes
        if self.columns is not None:
            first = self.num_outputs()
            self.columns = torch.cat([self.columns, torch.arange(first, first + new, device=self.columns.device)])
        self.added.append(nn.Linear(self.in_features, new).to(self.weight))
        self.num_classes = spec.num_classes

    def shrink(self, spec: StreamSpec, number: int) -> None:
        """Leave out the output of a class."""
        device = self.weight.device
        columns = torch.arange(self.num_outputs(), device=device) if self.columns is None else self.columns
        self.columns = columns[torch.arange(len(columns), device=device) != number]
        self.num_classes = spec.num_classes

    def num_outputs(self) -> int:
        return self.out_features + sum(block.out_features for block in self.added)  # pyright: ignore


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
