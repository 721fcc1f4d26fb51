"""Networks: the encoder (slow learner), the adapter (fast learner), the baselines' classifier, CTN's controller."""

from dualnet.nets.adapter import Adapter, AdapterNorm
from dualnet.nets.classifier import Classifier, Head
from dualnet.nets.encoder import SMALLEST_IMAGE, BaseEncoder, pooled
from dualnet.nets.film import Controller, film
from dualnet.nets.norm import BatchNorm, forward_batches
from dualnet.nets.resnet import Encoder

__all__ = ["SMALLEST_IMAGE", "Adapter", "AdapterNorm", "BaseEncoder", "BatchNorm", "Classifier", "Controller"]
__all__ += ["Encoder", "Head", "film", "forward_batches", "pooled"]
