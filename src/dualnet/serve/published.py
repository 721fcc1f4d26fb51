"""What answers: a copy of the learner's weights, put in place as a whole. Predictions never wait for learning."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualnet.learners.ema import prediction_tensors
from dualnet.runs.model import Model, Prediction


class Answering:
    """A model whose weights are those of one publication."""

    def __init__(self, fresh: Callable[[], Model]) -> None:
        self.fresh, self.version = fresh, ""
        self.lock = threading.Lock()
        self.begin()

    @torch.no_grad()
    def begin(self) -> None:
        """The model that was saved, with the averaged weights as its weights, as published ones are."""
        self.model = self.fresh()
        self.write(answering(self.model))
        self.model.learner.ema = None

    def write(self, flat: Tensor) -> None:
        values = [value for _, value in prediction_tensors(self.model.learner)]
        for value, new in zip(values, flat.split([value.numel() for value in values]), strict=True):
            value.copy_(new.view(value.shape))

    @torch.no_grad()
    def put(self, status: dict[str, Any], data: bytes) -> None:
        flat = torch.from_numpy(np.frombuffer(data, np.float32).copy())  # NumPy copies without Python's lock
        with self.lock:
            if len(status["classes"]) < len(self.model.class_names):  # a learner that began anew from its checkpoint
                self.begin()
            self.version = status["version"]
            if len(status["classes"]) < len(self.model.class_names):
                return  # the checkpoint is newer than this, and answers until what it holds is published
            for name in status["classes"][len(self.model.class_names) :]:  # one by one, as the learner got them
                self.model.add_classes([name])
            self.write(flat)

    def predict(self, images: Tensor, top: int) -> tuple[str, list[Prediction]]:
        with self.lock:
            known = len(self.model.class_names) > 0
            return self.version, self.model.predict(images, top=top) if known else [Prediction((), ())] * len(images)


class Published:
    """Two copies: one answers, while the next weights are put into the other."""

    def __init__(self, fresh: Callable[[], Model]) -> None:
        self.current, self.other = Answering(fresh), Answering(fresh)

    def put(self, status: dict[str, Any], data: bytes) -> None:
        self.other.put(status, data)
        self.current, self.other = self.other, self.current

    def predict(self, images: Tensor, top: int) -> tuple[str, list[Prediction]]:
        return self.current.predict(images, top)


@torch.no_grad()
def answering(model: Model) -> Tensor:
    """A copy of the weights and statistics that answer, the averaged ones where there are such: float [all of them].

    Flat and as bytes, because to make objects of some 50 MB keeps Python's lock for 0.1 s, and predictions wait.
    """
    learner = model.learner
    means = {} if learner.ema is None else learner.ema.means()
    return torch.cat([means.get(name, value).float().flatten() for name, value in prediction_tensors(learner)]).cpu()
