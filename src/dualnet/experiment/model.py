"""A trained model in use: a run folder becomes something that answers, and that can go on learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.batch import StreamSpec
from dualnet.data.decode import decoding, read_image
from dualnet.data.splits import class_mask
from dualnet.experiment.run import load_state
from dualnet.experiment.run_folder import RunFolder
from dualnet.learners import Learner, make_learner

PREDICT_SIZE = 250  # images in one pass


@dataclass(frozen=True)
class Prediction:
    """Class names with their probabilities, the most probable first."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def name(self) -> str:
        return self.classes[0]

    @property
    def probability(self) -> float:
        return self.probabilities[0]


@dataclass(frozen=True)
class Model:
    """A learner with the names of its classes."""

    learner: Learner
    class_names: tuple[str, ...]

    def predict(self, images: Tensor | Sequence[str | Path], task: int | None = None, top: int = 5) -> list[Prediction]:
        """What is on the images: files, or uint8 [B, C, H, W] of any size.

        A task-aware model answers best when told the task (0, 1, ...); without one, every class may be the answer.
        """
        if top < 1:
            raise ValueError(f"top: {top} is not 1 or more")
        rows = self.probabilities(images, task)
        return [self.prediction(row, self.candidates(task), top) for row in rows]

    def probabilities(self, images: Tensor | Sequence[str | Path], task: int | None = None) -> Tensor:
        """Float [B, classes]; 0 for the classes outside of the task."""
        pixels = self.check(images) if isinstance(images, Tensor) else self.read(images)
        parts = [self.answer(part, task) for part in pixels.split(PREDICT_SIZE)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.class_names))

    def answer(self, pixels: Tensor, task: int | None) -> Tensor:
        num_tasks = self.learner.spec.num_tasks
        if task is not None and not 0 <= task < num_tasks:
            raise ValueError(f"task {task}: this model knows the tasks 0 to {num_tasks - 1}")
        task_ids = None if task is None else torch.full((len(pixels),), task, device=pixels.device)
        return F.softmax(self.learner.answer(pixels, task_ids), dim=1)

    def read(self, files: Sequence[str | Path]) -> Tensor:
        """Files as the image cache reads them: uint8 [B, C, H, W] at the size the model was trained with."""
        _, height, width = self.learner.spec.image_shape
        images = np.empty((len(files), height, width, 3), np.uint8)
        with decoding():
            for file, image in zip(files, images, strict=True):
                read_image(str(file), image)
        return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(self.device)

    def check(self, images: Tensor) -> Tensor:
        """Any size goes: the learner resizes to what its networks see."""
        channels = self.learner.spec.image_shape[0]
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != channels:
            found = f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
            raise ValueError(f"images are {found}; give uint8 [B, {channels}, H, W]")
        return images.to(self.device)

    @property
    def device(self) -> torch.device:
        return self.learner.class_mask.device

    def candidates(self, task: int | None) -> Tensor:
        """The classes that may be named, int64 [n]."""
        mask = self.learner.class_mask.any(dim=0) if task is None else self.learner.class_mask[task]
        return mask.nonzero().flatten()

    def prediction(self, probabilities: Tensor, candidates: Tensor, top: int) -> Prediction:
        values, order = probabilities[candidates].sort(descending=True, stable=True)
        names = [self.class_names[number] for number in candidates[order][:top].tolist()]
        return Prediction(tuple(names), tuple(values[:top].tolist()))


def load(run: str | Path, device: str = "cpu") -> Model:
    """The model of a run folder, by its newest checkpoint. Its `learner` can go on observing."""
    folder = RunFolder(Path(run))
    content, experiment = folder.read(), folder.read_experiment()
    found = folder.newest_checkpoint()
    if found is None:
        raise ValueError(f"{run}: holds no checkpoint that can be read; run it first with `dualnet run`")
    spec = stream_spec(content["stream"], experiment.protocol != "task_aware")
    learner = make_learner(experiment.learner_name, spec, experiment.learner, experiment.seed, device)
    _, state = found
    if state["device"] != learner.class_mask.device.type:
        # A generator's state means nothing on another device.
        state["learner"]["_extra_state"] = learner.get_extra_state()
    load_state(learner, state)
    return Model(learner, tuple(content["stream"]["class_names"]))


def stream_spec(stream: dict[str, Any], task_free: bool) -> StreamSpec:
    mask = class_mask(stream["tasks"], len(stream["class_names"]))
    channels, height, width = stream["image_shape"]
    spec = StreamSpec((channels, height, width), mask, stream["input_size"])
    return spec.task_free() if task_free else spec
