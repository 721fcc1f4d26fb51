"""The baselines' network: an encoder and linear heads over all classes, on its last map or on every one."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dualnet.batch import StreamSpec, change_rows
from dualnet.nets.encoder import BaseEncoder, pooled

Heads = Literal["last", "all"]


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


def lower_heads(channels: Sequence[int], num_classes: int, heads: Heads) -> nn.ModuleList:
    """The heads of the levels below the last one, if every level has a head."""
    return nn.ModuleList(Head(count, num_classes) for count in channels[:-1] if heads == "all")


def head_logits(maps: Sequence[Tensor], head: Head, lower: nn.ModuleList) -> Tensor:
    """The logits of the head on the last map, [B, classes]; with lower heads those of all, [B, heads, classes]."""
    last = head(pooled(maps[-1]))
    below = [each(pooled(each_map)) for each, each_map in zip(lower, maps, strict=False)]
    return torch.stack([*below, last], dim=1) if below else last


class Classifier(nn.Module):
    def __init__(self, encoder: BaseEncoder, num_classes: int, heads: Heads = "last") -> None:
        super().__init__()
        self.encoder = encoder
        self.head = Head(self.encoder.channels[-1], num_classes)
        self.lower_heads = lower_heads(self.encoder.channels, num_classes, heads)

    def features(self, images: Tensor, parts: int = 1) -> Tensor:
        """The last map of the encoder, float [B, channels, H, W]."""
        return self.encoder(images, parts)[-1]

    def forward(self, images: Tensor, parts: int = 1) -> Tensor:
        return head_logits(self.encoder(images, parts), self.head, self.lower_heads)
