"""Networks: the slow encoder, the fast adapter, the baselines' classifier, CTN's controller."""

from dualnet.nets.adapter import Adapter, AdapterNorm
from dualnet.nets.classifier import Classifier
from dualnet.nets.encoder import SMALLEST_IMAGE, AnyEncoder, Encoder, pooled
from dualnet.nets.film import Controller, FilmClassifier
from dualnet.nets.head import Head
from dualnet.nets.norm import BatchNorm, forward_batches

__all__ = ["SMALLEST_IMAGE", "Adapter", "AdapterNorm", "AnyEncoder", "BatchNorm", "Classifier", "Controller", "Encoder"]
__all__ += ["FilmClassifier", "Head", "forward_batches", "pooled"]
