"""Any network that returns feature maps, as an encoder: one of your own, or of timm."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dualnet.nets.encoder import AnyEncoder


class OtherEncoder(AnyEncoder):
    """Wraps a module whose forward pass takes images, float [B, C, H, W], and returns a list of feature maps.

    Their channels, and that they are feature maps, is seen by trying the module on one image of the stream's size.
    """

    def __init__(self, make: Callable[[], nn.Module], image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.net = make()
        if not isinstance(self.net, nn.Module):
            raise ValueError(f"it makes {type(self.net).__name__} where a torch.nn.Module is needed")
        self.channels = tuple(feature_map.shape[1] for feature_map in self.tried(image_shape))

    @property
    def inner(self) -> nn.Module:
        return self.net

    @torch.no_grad()
    def tried(self, image_shape: tuple[int, int, int]) -> list[Tensor]:
        maps = self.eval()(torch.zeros(1, *image_shape))
        self.train()
        if not maps or not all(isinstance(each, Tensor) and each.dim() == 4 for each in maps):
            raise ValueError("it does not return a list of feature maps, [B, channels, H, W] each")
        return maps

    def forward(self, images: Tensor, parts: int = 1) -> list[Tensor]:
        """Each part alone, because BatchNorm of other networks takes all that it is given as one batch."""
        if parts == 1 or not self.training:
            return list(self.net(images))
        return [torch.cat(each) for each in zip(*map(self.net, images.chunk(parts)), strict=True)]


def timm_features(model: str, **options: Any) -> nn.Module:
    """The feature maps of a model of timm (the extra `dualnet[timm]`), with random weights; nothing is downloaded."""
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(f"timm cannot be imported ({error}); pip install 'dualnet[timm]'") from error
    if ":" in model:  # a model of a hub, which timm would download
        raise ValueError(f"model: {model!r} is not the name of one of timm's own models, such as resnet18")
    for option in {"checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"} & options.keys():
        raise ValueError(f"encoder_options.{option}: weights come from a file in safetensors; give `weights`")
    return timm.create_model(model, pretrained=False, features_only=True, **options)
