"""The baselines' network: an encoder and one linear head over all classes."""

from torch import Tensor, nn

from dualnet.nets.encoder import BaseEncoder, pooled
from dualnet.nets.head import Head


class Classifier(nn.Module):
    def __init__(self, encoder: BaseEncoder, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = Head(self.encoder.channels[-1], num_classes)

    def forward(self, images: Tensor, parts: int = 1) -> Tensor:
        return self.head(pooled(self.encoder(images, parts)[-1]))
