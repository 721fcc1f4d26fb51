"""Custom encoders for the tests, which do not use this package."""

import torch
from torch import Tensor, nn


class ThreeMaps(nn.Module):
    """The second map is as large as the first, which no encoder of the package has."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        strides = {3: 3, width: 1, 2 * width: 2}  # by input channels
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
            for (before, stride), after in zip(strides.items(), (width, 2 * width, 3 * width), strict=True)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = []
        for block in self.blocks:
            maps.append(block(maps[-1] if maps else images))
        return maps


class OneVector(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


def fails() -> nn.Module:
    raise KeyError("no such\nthing")


NOTHING = torch.zeros(1)
