"""A trained model in use: a folder becomes something that answers, that can go on learning, and that can be kept."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.batch import described
from dualnet.data.decode import decoding, read_image
from dualnet.learners import Learner, make_learner
from dualnet.runs import saved_model
from dualnet.runs.run_folder import RunFolder
from dualnet.runs.saved_model import check_trusted, restored, stream_spec

PREDICT_SIZE = 250  # images in one pass
Images = Tensor | str | Path | Iterable[str | Path]


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
    """A learner with the names of its classes: one that was loaded, or any that `make_learner` gave."""

    learner: Learner
    class_names: Sequence[str]  # by class number

    def __post_init__(self) -> None:
        names, needed = self.class_names, self.learner.spec.num_classes
        if isinstance(names, str) or not all(isinstance(name, str) for name in names) or len(names) != needed:
            raise ValueError(f"class_names: {needed} names are needed, one for each class of the learner")

    def predict(self, images: Images, task: int | None = None, top: int = 5) -> list[Prediction]:
        """What is on the images: one file, several, or uint8 [B, C, H, W] of any size.

        A model that learned task-aware has learned to tell apart the classes of a task, not the tasks: give it the task
        (0, 1, ...). Without one every class may be the answer, it is right far less often, and its probabilities do not
        tell. One that learned task-free needs none.
        """
        if not is_whole(top) or top < 1:
            raise ValueError(f"top: {top} is not 1 or more")
        rows = self.probabilities(images, task)
        return [self.prediction(row, self.candidates(task), top) for row in rows]

    def probabilities(self, images: Images, task: int | None = None) -> Tensor:
        """Float [B, classes]; 0 for the classes outside of the task."""
        self.check_task(task)
        pixels = self.check(images) if isinstance(images, Tensor) else self.read(paths(images))
        parts = [self.part_probabilities(part, task) for part in pixels.split(PREDICT_SIZE)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.class_names))

    def part_probabilities(self, pixels: Tensor, task: int | None) -> Tensor:
        task_ids = None if task is None else torch.full((len(pixels),), int(task), device=pixels.device)
        return F.softmax(self.learner.logits(pixels, task_ids), dim=1)

    def check_task(self, task: int | None) -> None:
        num_tasks = self.learner.spec.num_tasks
        if task is not None and not (is_whole(task) and 0 <= task < num_tasks):
            raise ValueError(f"task {task!r}: this model knows the tasks 0 to {num_tasks - 1}")

    def read(self, files: Sequence[str | Path]) -> Tensor:
        """Files as the image cache reads them: uint8 [B, C, H, W] at the size the model was trained with."""
        channels, height, width = self.learner.spec.image_shape
        if channels != 3 or height != width:
            shape = [channels, height, width]
            raise ValueError(f"files are read as squares in colour, and this model learned {shape}; give a tensor")
        images = np.empty((len(files), height, width, 3), np.uint8)
        with decoding():
            for file, image in zip(files, images, strict=True):
                read_image(str(file), image)
        return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(self.device)

    def check(self, images: Tensor) -> Tensor:
        """Any size goes: the learner resizes to what its networks see."""
        channels = self.learner.spec.image_shape[0]
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != channels:
            raise ValueError(f"images are {described(images)}; give uint8 [B, {channels}, H, W]")
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
        numbers: list[int] = candidates[order][:top].tolist()
        names = tuple(self.class_names[number] for number in numbers)
        return Prediction(names, tuple(values[:top].tolist()))

    def save(self, folder: str | Path) -> None:
        """Keep all of it in a folder of its own: `dualnet.load` gives it back, and it learns on with the same bits."""
        saved_model.save(Path(folder), self.learner, self.class_names)


def load(run: str | Path, device: str = "cpu", trust: bool = False) -> Model:
    """The model of a run folder, by its newest checkpoint, or one that was saved: `load(folder).predict("cat.jpg")`.

    If it learned task-aware, `predict` needs the task: see there. Its `learner` can go on observing. A folder may name
    a learner from outside this package, whose module is imported and so runs: only with `trust`.
    """
    if saved_model.is_saved(Path(run)):
        return Model(*saved_model.load(Path(run), device, trust))
    folder = RunFolder(Path(run))
    check_trusted(folder.record.experiment["learner"].get("name"), folder.experiment_file, trust)
    experiment, stream = folder.experiment, folder.record.stream
    found = folder.newest_checkpoint()
    if found is None:
        # A finished run would not be run again.
        remedy = "remove its result.json, or the folder, and run it again" if folder.finished else "run it first"
        raise ValueError(f"{run}: holds no checkpoint that can be read; {remedy} with `dualnet run`")
    spec, class_names = stream_spec(stream, folder.experiment_file)
    spec = spec if experiment.protocol == "task_aware" else spec.task_free()
    learner = make_learner(experiment.learner_name, spec, experiment.learner, experiment.seed, device)
    return Model(restored(learner, found[1], folder.checkpoints), class_names)


def paths(images: str | Path | Iterable[str | Path]) -> list[str | Path]:
    """One path is one image."""
    if isinstance(images, (str, os.PathLike)):
        return [images]
    wanted = "give paths of files, or one Tensor uint8 [B, C, H, W]"
    if isinstance(images, np.ndarray) or not isinstance(images, Iterable):
        raise ValueError(f"images are {type(images).__name__}; {wanted}")
    files = list(images)
    for file in files:
        if not isinstance(file, (str, os.PathLike)):
            raise ValueError(f"images hold {type(file).__name__}; {wanted}")
    return files


def is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
