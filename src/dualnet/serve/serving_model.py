"""The model that serves predictions: a copy of what the learner predicts by, so that predictions never wait for it."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualnet.learners import Learner
from dualnet.learners.ema import prediction_tensors
from dualnet.models.examples import Examples
from dualnet.models.model import Model, load
from dualnet.models.predictions import Prediction
from dualnet.nets import BaseEncoder
from dualnet.nets.closed_form import FOR_PREDICTION
from dualnet.serve import state_folder
from dualnet.serve.options import Options

MAX_BATCH = 16  # images predicted together


class ServingModel:
    """A model as of one publication."""

    def __init__(self, options: Options, model: Model | None = None) -> None:
        """Of this model, or the saved one: without what only learning needs, and with averaged weights as its weights.

        Those of this one are changed.
        """
        self.status: Mapping[str, Any] = {"version": ""}
        self.lock = threading.Lock()
        self.model = model or load(options.state / state_folder.MODEL, state_folder.device_of(options))
        self.write(publication(self.model))
        self.model.learner.ema, self.model.examples = None, Examples()
        for memory in self.model.learner.memories:
            memory.change_slots(1)

    @torch.no_grad()
    def write(self, flat: Tensor) -> None:
        learner = self.model.learner
        values = [value for _, value in published_tensors(learner)]
        for value, new in zip(values, flat.split([value.numel() for value in values]), strict=True):
            value.copy_(new.view(value.shape))
        if learner.closed_form is not None:
            learner.closed_form.is_solved = True

    @property
    def image_size(self) -> int:
        return self.model.learner.spec.image_shape[1]

    @property
    def version(self) -> str:
        return self.status["version"]

    def update(self, status: Mapping[str, Any], content: bytes | memoryview) -> None:
        flat = torch.from_numpy(np.frombuffer(content, np.float32).copy())  # NumPy copies without holding the GIL
        with self.lock:
            self.status, self.model.class_names = status, status["classes"]
            learner = self.model.learner
            while learner.spec.num_classes > len(self.model.class_names):
                learner.remove_class(0)
            if missing := len(self.model.class_names) - learner.spec.num_classes:
                learner.add_classes(missing)
            self.write(flat)

    def predict(self, images: Tensor, top: int) -> tuple[Mapping[str, Any], list[Prediction]]:
        """The status of the publication, and a prediction for each image.

        They have no classes if there is nothing to tell apart: a closed-form head knows the classes that have images,
        and needs two of them.
        """
        with self.lock:
            head = self.model.learner.closed_form
            if not self.model.class_names or (head is not None and (head.counts > 0).sum() < 2):
                return self.status, [Prediction((), ())] * len(images)
            return self.status, predict(self.model, images, top)


def predict(model: Model, images: Tensor, top: int) -> list[Prediction]:
    """In small batches: the system's allocator keeps memory for every size that a batch has had, up to gigabytes."""
    return [answer for part in images.split(MAX_BATCH) for answer in model.predict(part, top=top)]


def published_tensors(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    """What predictions depend on and learning changes: neither a frozen encoder nor the sums of a closed-form head."""
    fixed = frozen_ids(learner)
    yield from ((name, value) for name, value in prediction_tensors(learner) if id(value) not in fixed)
    if (head := learner.closed_form) is not None:
        yield from ((name, getattr(head, name)) for name in FOR_PREDICTION)


def frozen_tensors(learner: Learner) -> dict[str, Tensor]:
    """What predictions depend on and learning does not change."""
    fixed = frozen_ids(learner)
    return {name: value for name, value in prediction_tensors(learner) if id(value) in fixed}


def frozen_ids(learner: Learner) -> set[int]:
    """Of the tensors of a frozen encoder."""
    frozen = [module for module in learner.modules() if isinstance(module, BaseEncoder) and module.frozen]
    return {id(value) for encoder in frozen for value in (*encoder.parameters(), *encoder.buffers())}


@torch.no_grad()
def publication(model: Model) -> Tensor:
    """The published tensors, averaged ones where the learner has them: flat, float.

    One flat buffer, because unpickling about 50 MB of tensors would hold the GIL, and delay predictions, for 0.1 s.
    """
    learner = model.learner
    if learner.closed_form is not None:
        learner.closed_form.solve()
    means = {} if learner.ema is None else learner.ema.means()
    return torch.cat([means.get(name, value).float().flatten() for name, value in published_tensors(learner)]).cpu()
