"""The model that serves predictions: a copy of the learner's weights, so that predictions never wait for training."""

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualnet.learners.ema import prediction_tensors
from dualnet.models.model import Model, load
from dualnet.models.predictions import Prediction
from dualnet.serve import state_folder
from dualnet.serve.options import Options

MAX_BATCH = 16  # images predicted together


class ServingModel:
    """A model with the weights of one publication."""

    def __init__(self, options: Options) -> None:
        """The saved model, with the averaged weights as its weights: publications contain only those."""
        self.version, self.lock = "", threading.Lock()
        self.model = load(options.state / state_folder.MODEL, state_folder.device_of(options))
        self.write(prediction_weights(self.model))
        self.model.learner.ema = None

    @torch.no_grad()
    def write(self, flat: Tensor) -> None:
        values = [value for _, value in prediction_tensors(self.model.learner)]
        for value, new in zip(values, flat.split([value.numel() for value in values]), strict=True):
            value.copy_(new.view(value.shape))

    def update(self, status: dict[str, Any], weights: bytes) -> None:
        flat = torch.from_numpy(np.frombuffer(weights, np.float32).copy())  # NumPy copies without holding the GIL
        with self.lock:
            self.version, self.model.class_names = status["version"], status["classes"]
            learner = self.model.learner
            while learner.spec.num_classes > len(self.model.class_names):
                learner.remove_class(0)
            if missing := len(self.model.class_names) - learner.spec.num_classes:
                learner.add_classes(missing)
            self.write(flat)

    def predict(self, images: Tensor, top: int) -> tuple[str, list[Prediction]]:
        """The version of the model, and a prediction for each image; without classes while the model has none."""
        with self.lock:
            if not self.model.class_names:
                return self.version, [Prediction((), ())] * len(images)
            return self.version, predict(self.model, images, top)


def predict(model: Model, images: Tensor, top: int) -> list[Prediction]:
    """In small batches: the system's allocator keeps memory for every size that a batch has had, up to gigabytes."""
    return [answer for part in images.split(MAX_BATCH) for answer in model.predict(part, top=top)]


@torch.no_grad()
def prediction_weights(model: Model) -> Tensor:
    """The weights and statistics used for prediction, averaged ones where the learner has them: a flat float tensor.

    One flat buffer, because unpickling about 50 MB of tensors would hold the GIL, and delay predictions, for 0.1 s.
    """
    learner = model.learner
    means = {} if learner.ema is None else learner.ema.means()
    return torch.cat([means.get(name, value).float().flatten() for name, value in prediction_tensors(learner)]).cpu()
