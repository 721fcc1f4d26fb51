"""Export of a model to ONNX: from images to probabilities and `unknown`, usable without this package."""

import contextlib
import copy
import importlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from dualnet import atomic
from dualnet.learners import Learner
from dualnet.learners.ema import prediction_tensors
from dualnet.models.model import UNKNOWN_SHARE, Model
from dualnet.nets import BaseEncoder
from dualnet.nets.closed_form import pooled_features
from dualnet.text import escape


class Predictor(nn.Module):
    """images uint8 [B, C, H, W] -> probabilities float [B, classes], with the averaged weights if there are any."""

    def __init__(self, learner: Learner, task: int | None) -> None:
        super().__init__()
        self.learner, self.task = copy.deepcopy(learner).cpu(), task
        means = {} if learner.ema is None else learner.ema.means()
        for name, value in prediction_tensors(self.learner):
            value.data.copy_(means.get(name, value))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.learner(images, self.task_ids(images)).softmax(dim=1),)

    def task_ids(self, images: Tensor) -> Tensor | None:
        return None if self.task is None else images.new_full(images.shape[:1], self.task, dtype=torch.int64)


class ClosedFormPredictor(Predictor):
    """Also whether images are unknown, bool [B], and their novelty, float [B]."""

    whitening: Tensor  # float [features, features]

    def __init__(self, learner: Learner, task: int | None, threshold: float) -> None:
        super().__init__(learner, task)
        head, self.threshold = self.learner.closed_form, threshold
        assert head is not None
        self.encoder = next(module for module in self.learner.modules() if isinstance(module, BaseEncoder))
        head.solve()
        inverse = torch.linalg.solve_triangular(head.factor, torch.eye(len(head.factor)).to(head.factor), upper=False)
        self.head = copy.deepcopy(head).float()  # not every runtime has float64
        self.register_buffer("whitening", inverse.float().T)  # ONNX cannot solve equations

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        features = pooled_features(self.encoder(self.learner.network_input(images)))
        logits, novelty = self.head.outputs((features.float() - self.head.center) @ self.whitening)
        probabilities = self.learner.mask_logits(logits, self.task_ids(images)).softmax(dim=1)
        return probabilities, novelty > self.threshold, novelty


def export(model: Model, file: Path, task: int | None = None) -> None:
    """Write an ONNX file: input `images`, output `probabilities`, metadata `class_names` (a JSON list).

    With a closed-form head also the outputs `unknown` and `novelty`. Images are uint8 in the size of the model, any
    number at a time. `task` is the task of a task-aware model.
    """
    try:
        importlib.import_module("onnxscript")
    except ModuleNotFoundError as error:
        raise ValueError(f"ONNX needs {error.name}; install it with pip install 'dualnet[onnx]'") from error
    if not model.class_names:
        raise ValueError("the model has no classes yet; teach it some before exporting it")
    if model.learner.memory_head is not None:
        answer = model.learner.config.answer
        raise ValueError(f"learner.answer: {answer} needs the images in the memory, which ONNX leaves out; use heads")
    images = torch.zeros(2, *model.learner.spec.image_shape, dtype=torch.uint8)
    model.probabilities(images, task)  # checks the task, and creates constants outside of the trace
    if file.is_dir():
        raise ValueError(f"{escape(file)}: is a folder; give a file, such as {escape(file / 'model.onnx')}")
    if file.suffix != ".onnx":
        raise ValueError(f"{escape(file)}: the format is ONNX; give {escape(file.with_suffix('.onnx'))}")
    atomic.make_folder(file.parent, "give another file")
    predictor, names = Predictor(model.learner, task), ["probabilities"]
    if model.learner.closed_form is not None:
        predictor = ClosedFormPredictor(model.learner, task, model.threshold(UNKNOWN_SHARE))
        names += ["unknown", "novelty"]
    with _quiet():
        program = torch.onnx.export(
            predictor.eval(), (images,), input_names=["images"], output_names=names,
            dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True, verbose=False,
        )  # fmt: skip
    assert program is not None
    content = program.model_proto
    entry = content.metadata_props.add()
    entry.key, entry.value = "class_names", json.dumps(list(model.class_names))
    atomic.write(file, content.SerializeToString())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without PyTorch's own messages, such as warnings that torchvision is not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
