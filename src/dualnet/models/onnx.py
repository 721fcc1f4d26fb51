"""Export of a model to ONNX: from images to probabilities, usable without this package."""

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
from dualnet.models.model import Model
from dualnet.text import escape


class Predictor(nn.Module):
    """images uint8 [B, C, H, W] -> probabilities float [B, classes], with the averaged weights if there are any."""

    def __init__(self, learner: Learner, task: int | None) -> None:
        super().__init__()
        self.learner, self.task = copy.deepcopy(learner).cpu(), task
        means = {} if learner.ema is None else learner.ema.means()
        for name, value in prediction_tensors(self.learner):
            value.data.copy_(means.get(name, value))

    def forward(self, images: Tensor) -> Tensor:
        task_ids = None if self.task is None else images.new_full(images.shape[:1], self.task, dtype=torch.int64)
        return self.learner(images, task_ids).softmax(dim=1)


def export(model: Model, file: Path, task: int | None = None) -> None:
    """Write an ONNX file: input `images`, output `probabilities`, metadata `class_names` (a JSON list).

    Images are uint8 in the size of the model, any number at a time. `task` is the task of a task-aware model.
    """
    try:
        importlib.import_module("onnxscript")
    except ModuleNotFoundError as error:
        raise ValueError(f"ONNX needs {error.name}; install it with pip install 'dualnet[onnx]'") from error
    if not model.class_names:
        raise ValueError("the model has no classes yet; teach it some before exporting it")
    images = torch.zeros(2, *model.learner.spec.image_shape, dtype=torch.uint8)
    model.probabilities(images, task)  # checks the task, and creates constants outside of the trace
    if file.is_dir():
        raise ValueError(f"{escape(file)}: is a folder; give a file, such as {escape(file / 'model.onnx')}")
    atomic.make_folder(file.parent, "give another file")
    predictor = Predictor(model.learner, task).eval()
    with _quiet():
        program = torch.onnx.export(
            predictor, (images,), input_names=["images"], output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True, verbose=False,
        )  # fmt: skip
    assert program is not None
    content = program.model_proto
    names = content.metadata_props.add()
    names.key, names.value = "class_names", json.dumps(list(model.class_names))
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
