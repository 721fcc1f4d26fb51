"""The built-in encoder: a ResNet18 with a 3x3 stem and max-pool (He et al., 2016; of width 20 as in GEM)."""

from torch import Tensor, nn

from dualnet.kernels import conv_norm_pool
from dualnet.nets.conv import Conv, autocast_weights
from dualnet.nets.encoder import BaseEncoder
from dualnet.nets.norm import BatchNorm


class ResidualBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int, relu: bool) -> None:
        super().__init__()
        self.conv1 = Conv(in_channels, channels, 3, stride, padding=1, bias=False)
        self.norm1 = BatchNorm(channels)
        self.conv2 = Conv(channels, channels, 3, padding=1, bias=False)
        self.norm2 = BatchNorm(channels, relu)
        self.shortcut = Conv(in_channels, channels, 1, stride, bias=False) if stride != 1 else None
        self.shortcut_norm = BatchNorm(channels, relu=False) if stride != 1 else None

    def forward(self, x: Tensor, parts: int) -> Tensor:
        out = self.norm1(self.conv1(x), parts)
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x), parts)
        return self.norm2(self.conv2(out), parts, residual=x)


class Encoder(BaseEncoder):
    """Four feature maps with 1, 2, 4 and 8 times `width` channels: of 42, 21, 11 and 6 px for images of 84 px.

    With `block_relu=False` no ReLU follows a block's residual sum.
    """

    def __init__(self, width: int, in_channels: int = 3, block_relu: bool = True) -> None:
        super().__init__()
        self.channels = (width, 2 * width, 4 * width, 8 * width)
        self.stem = Conv(in_channels, width, 3, padding=1, bias=False)
        self.stem_norm = BatchNorm(width)
        self.stem_pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = nn.ModuleList()
        for stage, channels in enumerate(self.channels):
            before = self.channels[max(stage - 1, 0)]
            first = ResidualBlock(before, channels, 1 if stage == 0 else 2, block_relu)
            self.stages.append(nn.ModuleList([first, ResidualBlock(channels, channels, 1, block_relu)]))

    def forward(self, images: Tensor, parts: int = 1) -> list[Tensor]:
        maps = []
        with autocast_weights(self):
            x = conv_norm_pool(images, self.stem, self.stem_norm, self.stem_pool, parts)
            for stage in self.stages:
                for block in stage:  # pyright: ignore[reportGeneralTypeIssues]
                    x = block(x, parts)
                maps.append(x)
        return maps
