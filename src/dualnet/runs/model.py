"""A trained model: a learner with the names of its classes, which answers, can go on learning, and is saved and loaded.

A folder holds it: that of a run, or one of its own, with model.yaml and checkpoint/.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from dualnet import atomic
from dualnet.batch import StreamSpec
from dualnet.data.decode import OnError
from dualnet.data.inputs import pixels_of, readable
from dualnet.data.splits import class_mask
from dualnet.files import DAMAGES, because, read_yaml, reason
from dualnet.learners import LEARNERS, Learner, learner_name, make_learner
from dualnet.options import choose, plain
from dualnet.runs import checkpoint
from dualnet.runs.experiment import parse, parse_learner
from dualnet.runs.record import digest_of, updated
from dualnet.runs.run import learner_state, load_state
from dualnet.runs.run_folder import MODEL_FILE, RunFolder, describe_stream, environment
from dualnet.runs.run_log import is_whole
from dualnet.text import printable

PREDICT_SIZE = 250  # images in one pass
WHAT_IT_IS = ("learner", "seed", "stream", "added")  # in model.yaml: what saving it again must find there


@dataclass(frozen=True)
class Prediction:
    """Class names with their probabilities, the most probable first. None of an image that could not be read."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    error: str = ""  # why the image could not be read, with `on_error="skip"`

    @property
    def name(self) -> str:
        return "" if self.error else self.classes[0]

    @property
    def probability(self) -> float:
        return 0.0 if self.error else self.probabilities[0]


@dataclass
class Model:
    """A learner with the names of its classes: one that was loaded, or any that `make_learner` gave."""

    learner: Learner
    class_names: Sequence[str]  # by class number

    def __post_init__(self) -> None:
        self.check_names()

    def check_names(self) -> None:
        """Raises ValueError unless there is one for each class; the learner may have got more by itself."""
        names, needed = self.class_names, self.learner.spec.num_classes
        if isinstance(names, str) or not all(isinstance(name, str) for name in names) or len(names) != needed:
            raise ValueError(f"class_names: {needed} names are needed, one for each class of the learner")

    def add_classes(self, names: Sequence[str], task: int | None = None) -> None:
        """Classes that can be learned from now on; the logits of the others stay, until the next learning step.

        They belong to that task, else to the only one, else to a new one.
        """
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"names: {names!r} is not a list of names, such as ['cat', 'dog']")
        if again := {name for number, name in enumerate(names) if name in (*self.class_names, *names[:number])}:
            raise ValueError(f"names: {min(again)!r} is there already; give every class a name of its own")
        self.check_names()
        self.learner.add_classes(len(names), task)
        self.class_names = (*self.class_names, *names)

    def predict(
        self, images: Any, task: int | None = None, top: int = 5, on_error: OnError = "stop"
    ) -> list[Prediction]:
        """What is on the images: a file, a folder, bytes, a Pillow image, an array [H, W, 3], or a list of such.

        An array [B, H, W, C] or a tensor uint8 [B, C, H, W] is a batch of images of any size.

        A model that learned task-aware has learned to tell apart the classes of a task, not the tasks: give it the task
        (0, 1, ...). Without one every class may be the answer, it is right far less often, and its probabilities do not
        tell. One that learned task-free needs none.

        Where images cannot be read, a ValueError names them all; with `on_error="skip"` the others are answered, and
        these have a prediction without a class, whose `error` is the reason.
        """
        choose(on_error, get_args(OnError), "on_error")
        if not is_whole(top) or top < 1:
            raise ValueError(f"top: {top} is not 1 or more")
        self.check_names()
        shape = self.learner.spec.image_shape
        pixels, errors = readable(images, shape) if on_error == "skip" else (pixels_of(images, shape), {})
        probabilities = self.probabilities(pixels, task)
        allowed = self.learner.class_mask.any(dim=0) if task is None else self.learner.class_mask[task]
        candidates = allowed.nonzero().flatten()
        values, order = probabilities[:, candidates].sort(dim=1, descending=True, stable=True)
        numbers: list[list[int]] = candidates[order[:, :top]].tolist()
        names = [tuple(self.class_names[number] for number in row) for row in numbers]
        answers = map(Prediction, names, map(tuple, values[:, :top].tolist()))
        reasons = {number: next(iter(error.reasons.values())) for number, error in errors.items()}
        total = len(names) + len(errors)
        return [Prediction((), (), reasons[n]) if n in reasons else next(answers) for n in range(total)]

    def probabilities(self, images: Any, task: int | None = None) -> Tensor:
        """Float [B, classes]; 0 for the classes outside of the task."""
        num_tasks, device = self.learner.spec.num_tasks, self.learner.class_mask.device
        if task is not None and not (is_whole(task) and 0 <= task < num_tasks):
            raise ValueError(f"task {task!r}: this model knows the tasks 0 to {num_tasks - 1}")
        pixels = pixels_of(images, self.learner.spec.image_shape).to(device)
        self.learner.input_check.query(pixels, None, device)
        parts = pixels.split(PREDICT_SIZE)
        task_ids = [None if task is None else torch.full((len(part),), int(task), device=device) for part in parts]
        logits = [self.learner.logits(*part) for part in zip(parts, task_ids, strict=True)]
        return F.softmax(torch.cat(logits), dim=1)

    def save(self, folder: str | Path) -> None:
        """Keep all of it: `dualnet.load` gives it back, and it learns on with the same bits.

        Into a new folder, or once more into that of the same model, where the save before it stays, in case of damage.
        """
        self.check_names()
        path, learner, device = Path(folder), self.learner, self.learner.class_mask.device
        file, checkpoints = path / MODEL_FILE, RunFolder(path).checkpoints
        content = {
            "learner": {"name": learner_name(learner), **plain(dataclasses.asdict(learner.config))},
            "seed": learner.generator.initial_seed(),
            "stream": describe_stream(learner.initial_spec, self.class_names[: learner.initial_spec.num_classes]),
            "environment": environment(device),
        }
        if learner.added:
            content["added"] = self.added_classes()
        if file.is_file():
            there = read_yaml(file)
            for key in WHAT_IT_IS:
                if there.get(key) != content.get(key):
                    raise ValueError(f"{path}: holds another model (its `{key}` differs); choose another folder")
        else:
            text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
            make(path)
            atomic.write(file, text)
        checkpoint.clean(checkpoints)
        number = max(checkpoint.steps(checkpoints), default=0) + 1
        state = checkpoint.snapshot({**learner_state(learner), "device": device.type})
        checkpoint.write(checkpoints, number, state, identity(content))

    def added_classes(self) -> list[dict[str, Any]]:
        """The names given to `add_classes` and their task, one entry for each call."""
        rest = map(str, self.class_names[self.learner.initial_spec.num_classes :])
        return [{"classes": list(islice(rest, count)), "task": task} for count, task in self.learner.added]


def load(run: str | Path, device: str = "cpu", trust: bool = False) -> Model:
    """The model of a run folder, by its newest checkpoint, or one that was saved: `load(folder).predict("cat.jpg")`.

    If it learned task-aware, `predict` needs the task: see there. Its `learner` can go on observing. A folder may name
    a learner from outside this package, whose module is imported and so runs: only with `trust`.
    """
    path = Path(run)
    folder, is_model = RunFolder(path), (path / MODEL_FILE).is_file()
    file = path / MODEL_FILE if is_model else folder.experiment_file
    content = read_yaml(file) if is_model else {**folder.record.experiment, "stream": folder.record.stream}
    check_trusted(content.get("learner"), file, trust)
    try:
        name, config = parse_learner(updated(content)["learner"])
        spec, names = stream_spec(content["stream"])
        if not is_model and parse(folder.record.experiment).protocol != "task_aware":
            spec = spec.task_free()
        model = Model(make_learner(name, spec, config, content["seed"], device), names)
        for entry in content.get("added", ()):
            model.add_classes(entry["classes"], entry["task"])
    except DAMAGES as error:
        raise ValueError(f"{because(file, error)}; if another version of dualnet made it, use that one") from error
    found = checkpoint.newest(folder.checkpoints, identity(content) if is_model else folder.identity)
    if found is None:
        # A finished run would not be run again.
        again = "remove its result.json, or the folder, and run it again" if folder.finished else "run it first"
        remedy = "save the model again" if is_model else f"{again} with `dualnet run`"
        raise ValueError(f"{path}: holds no checkpoint that can be read; {remedy}")
    try:
        load_state(model.learner, found[1])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return model


def make(folder: Path) -> None:
    """Raises ValueError for a folder that holds something: nothing of a run, or of yours, is written over."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if [path for path in folder.iterdir() if not path.name.startswith(MODEL_FILE)]:  # half a file may be left
            what = "a run" if RunFolder(folder).begun else "other files"
            raise ValueError(f"{folder}: holds {what}; save the model to a folder of its own")
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise ValueError(f"{folder}: cannot be made ({error.strerror}); choose another folder") from error


def identity(content: dict[str, Any]) -> dict[str, str]:
    """What a checkpoint of this model must state."""
    return {"model": digest_of({key: content[key] for key in WHAT_IT_IS if key in content})}


def check_trusted(learner: Any, file: Path, trust: bool) -> None:
    """Raises ValueError for a learner from outside this package: to load it is to run its code."""
    name = learner.get("name") if isinstance(learner, dict) else None
    if isinstance(name, str) and not trust and name not in LEARNERS and not name.startswith("dualnet."):
        raise ValueError(
            f"{file}: learner.name is {printable(name)}, code from outside of dualnet that would be imported and "
            "run; if you trust it, pass trust=True, or --trust to `dualnet predict`"
        )


def stream_spec(stream: Any) -> tuple[StreamSpec, tuple[str, ...]]:
    """What a learner was told of its stream, as it is written in a file, and the names of the classes."""
    try:
        names = tuple(str(name) for name in stream["class_names"])
        channels, height, width = (int(side) for side in stream["image_shape"])
        if not all(is_whole(number) and 0 <= number < len(names) for task in stream["tasks"] for number in task):
            raise ValueError(f"a class of tasks is not a whole number from 0 to {len(names) - 1}")
        mask = class_mask(stream["tasks"], len(names))
        return StreamSpec((channels, height, width), mask, stream["input_size"]), names
    except DAMAGES as error:
        raise ValueError(f"stream: {reason(error)}") from error
