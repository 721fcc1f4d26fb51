"""Custom encoders: any module that returns feature maps, including the models of timm."""

from typing import Any

import torch
from torch import Tensor, nn

from dualnet.nets.encoder import BaseEncoder


class CustomEncoder(BaseEncoder):
    """Wraps a module whose forward pass takes images, float [B, C, H, W], and returns a list of feature maps.

    A forward pass of one image of the given shape checks the output and finds the channels.
    """

    def __init__(self, net: object, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise ValueError(f"it returns {type(net).__name__}, not a torch.nn.Module")
        self.net = net
        self.channels = tuple(feature_map.shape[1] for feature_map in self.trial_output(image_shape))

    @property
    def network(self) -> nn.Module:
        return self.net

    @torch.no_grad()
    def trial_output(self, image_shape: tuple[int, int, int]) -> list[Tensor]:
        maps = self.eval()(torch.zeros(1, *image_shape))
        self.train()
        if not maps or not all(isinstance(each, Tensor) and each.dim() == 4 for each in maps):
            raise ValueError("it does not return a list of feature maps, [B, channels, H, W] each")
        return maps

    def forward(self, images: Tensor, parts: int = 1) -> list[Tensor]:
        """One pass per part, because other BatchNorm layers normalise their whole input as one batch."""
        if parts == 1 or not self.training:
            return list(self.net(images))
        return [torch.cat(each) for each in zip(*map(self.net, images.chunk(parts)), strict=True)]


def timm_features(model: str, **options: Any) -> nn.Module:
    """A timm model that returns feature maps, with random weights (needs `dualnet[timm]`). Downloads nothing."""
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(f"timm cannot be imported ({error}); pip install 'dualnet[timm]'") from error
    if ":" in model:  # a model on a hub, which timm would download
        raise ValueError(f"model: {model!r} is not the name of one of timm's own models, such as resnet18")
    for option in {"checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"} & options.keys():
        raise ValueError(f"encoder_options.{option}: weights come from a file in safetensors; give `weights`")
    return timm.create_model(model, pretrained=False, features_only=True, **options)
