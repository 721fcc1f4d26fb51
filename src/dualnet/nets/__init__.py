"""Networks: the encoder (slow learner), two fast learners, the baselines' classifier, CTN's controller."""

from dualnet.nets.adapter import Adapter, AdapterNorm
from dualnet.nets.classifier import Classifier, Head, Heads
from dualnet.nets.closed_form import ClosedForm, pooled_features
from dualnet.nets.encoder import SMALLEST_IMAGE, BaseEncoder, pooled
from dualnet.nets.film import Controller, film
from dualnet.nets.norm import BatchNorm, forward_batches
from dualnet.nets.resnet import Encoder

__all__ = ["SMALLEST_IMAGE", "Adapter", "AdapterNorm", "BaseEncoder", "BatchNorm", "Classifier", "ClosedForm"]
__all__ += ["Controller", "Encoder", "Head", "Heads", "film", "forward_batches", "pooled", "pooled_features"]
