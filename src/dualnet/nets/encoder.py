"""Encoders: a ResNet18 with a 3x3 stem and max-pool (He et al., 2016; width 20 as in GEM), or a module of the user."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from dualnet.kernels import conv_norm_pool
from dualnet.kernels.conv import Conv, autocast_weights
from dualnet.nets.norm import BatchNorm

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


def timm_features(model: str, **options: Any) -> nn.Module:
    """A timm model that returns feature maps, with random weights (needs `dualnet[timm]`). Downloads nothing."""
    try:
        import timm
    except ImportError as error:
        raise ValueError(f"timm cannot be imported ({error}); pip install 'dualnet[timm]'") from error
    if ":" in model:  # a model on a hub, which timm would download
        raise ValueError(f"model: {model!r} is not the name of one of timm's own models, such as resnet18")
    for option in {"checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"} & options.keys():
        raise ValueError(f"encoder_options.{option}: weights come from a file in safetensors; give `weights`")
    return timm.create_model(model, pretrained=False, features_only=True, **options)


def pooled(feature_map: Tensor) -> Tensor:
    """The mean over the pixels: float [B, channels]."""
    return feature_map.mean(dim=(2, 3))
