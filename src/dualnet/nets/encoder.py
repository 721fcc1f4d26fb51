"""What an encoder is: a network that returns feature maps; and how a module of the user becomes one."""

from typing import Self

import torch
from torch import Tensor, nn

SMALLEST_IMAGE = 28  # pixels: the last map is then 2 x 2


class BaseEncoder(nn.Module):
    """The interface of encoders: `forward(images, parts)` returns feature maps with these `channels`."""

    channels: tuple[int, ...]
    frozen = False

    @property
    def network(self) -> nn.Module:
        """The module that computes the maps: the encoder itself, or the one that it wraps."""
        return self

    def freeze(self) -> None:
        """Exclude the weights and the BatchNorm statistics from training."""
        self.frozen = True
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(mode and not self.frozen)


class CustomEncoder(BaseEncoder):
    """Wraps a module whose forward pass takes images, float [B, C, H, W], and returns a list of feature maps.

    A forward pass of one image of the given shape checks the output and finds the channels.
    """

    def __init__(self, net: object, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise ValueError(f"it returns {type(net).__name__}, not a torch.nn.Module")
        self.net = net
        with torch.no_grad():
            maps = self.eval()(torch.zeros(1, *image_shape))
        if not maps or not all(isinstance(each, Tensor) and each.dim() == 4 for each in maps):
            raise ValueError("it does not return a list of feature maps, [B, channels, H, W] each")
        self.channels = tuple(each.shape[1] for each in maps)
        self.train()

    @property
    def network(self) -> nn.Module:
        return self.net

    def forward(self, images: Tensor, parts: int = 1) -> list[Tensor]:
        """One pass per part, because other BatchNorm layers normalise their whole input as one batch."""
        if parts == 1 or not self.training:
            return list(self.net(images))
        return [torch.cat(each) for each in zip(*map(self.net, images.chunk(parts)), strict=True)]


def pooled(feature_map: Tensor) -> Tensor:
    """The mean over the pixels: float [B, channels]."""
    return feature_map.mean(dim=(2, 3))
