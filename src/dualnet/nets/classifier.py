"""The baselines' network: the slow learner's encoder and one linear head over all classes."""

from torch import Tensor, nn

from dualnet.nets.encoder import Encoder, pooled
from dualnet.nets.head import Head


class Classifier(nn.Module):
    def __init__(self, width: int, num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        self.encoder = Encoder(width, in_channels)
        self.head = Head(self.encoder.channels[-1], num_classes)

    def forward(self, images: Tensor, parts: int = 1) -> Tensor:
        return self.head(pooled(self.encoder(images, parts)[-1]))
