"""A model: a learner with the names of its classes. It predicts, learns, gets new classes, is saved and loaded."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet import atomic
from dualnet.batch import UNLABELLED, Batch, StreamSpec, check_task
from dualnet.data.decode import MAX_SIZE, OnError
from dualnet.data.inputs import list_images, pixels_of, readable
from dualnet.engine import Engine, precision_on
from dualnet.experiments import checkpoint, saved_learner
from dualnet.experiments.experiment import open_ended
from dualnet.experiments.model_folder import LOCK_FILE, ModelFolder
from dualnet.experiments.record import CHECKPOINTS, EXPERIMENT_FILE, RESULT_FILE, describe_missing
from dualnet.experiments.run import finite_means
from dualnet.files import READ_ERRORS, describe_file_error
from dualnet.learners import Learner, make_learner
from dualnet.models.examples import Examples, read_examples
from dualnet.models.held_out import HeldOut, pixel_digest, read_held_out
from dualnet.models.labels import check_new_names, find_tasks, list_names
from dualnet.models.memory_images import remove_stored
from dualnet.models.predictions import Evaluation, Prediction
from dualnet.models.suggestions import most_instructive
from dualnet.nets import BaseEncoder
from dualnet.options import choose, suggest, whole_number
from dualnet.text import join_first, pluralise

PREDICT_SIZE = 250  # images in one pass
CALIBRATION_SIZE = 300  # examples to which probabilities are fitted
UNKNOWN_SHARE = 0.05  # of the images of known classes that may be predicted as unknown
NEW_MODEL: Mapping[str, Any] = {"name": "dualnet", "preset": "lda"}  # unless other options are given


@dataclass
class Model:
    """A learner with the names of its classes, from `Model.create`, `load` or `make_learner`."""

    learner: Learner
    class_names: Sequence[str]  # by class number
    held_out: HeldOut = field(default_factory=HeldOut, compare=False)  # tested by sessions of `dualnet learn`
    examples: Examples = field(default_factory=Examples, compare=False)  # of a closed-form head on a frozen encoder
    sessions: Sequence[Mapping[str, Any]] = field(default=(), compare=False)  # the results of these sessions
    saved: set[str] = field(default_factory=set, compare=False)  # digests of its checkpoints: it may replace these
    engine: Engine | None = field(default=None, init=False, repr=False, compare=False)  # made at the first step

    def __post_init__(self) -> None:
        self.check_names()

    def __repr__(self) -> str:
        names = [*self.class_names[:3], *(["..."] if len(self.class_names) > 3 else [])]
        shape = " x ".join(map(str, self.learner.spec.image_shape))
        return f"Model({type(self.learner).__name__}, {len(self.class_names)} classes: {', '.join(names)}; {shape})"

    @classmethod
    def create(
        cls,
        class_names: Sequence[str] = (),
        *,
        image_size: int = 64,
        channels: int = 3,
        learner: Mapping[str, Any] = NEW_MODEL,
        seed: int = 0,
        device: str = "cpu",
        label_share: float = 1.0,
        boundaries: bool = False,
    ) -> Model:
        """A new, untrained model without tasks. Classes can be added at any time; it may start without any.

        `learner` has the options of a learner as in an experiment file. The memory has a fixed total number of slots,
        by default 2000, shared equally by the classes (`memory: {slots: 2000, policy: balanced}`). If less than half
        of the images will have labels (`label_share`), the presets `best` and `trained` have a slow learner, which
        learns from all images. With `boundaries`, soft labels are computed when `model.learner.end_task()` is
        called, otherwise when an image is stored.
        """
        names = check_new_names(class_names)
        image_size = whole_number(image_size, "image_size", 1, MAX_SIZE)
        spec = StreamSpec((channels, image_size, image_size), torch.ones(1, len(names), dtype=torch.bool))
        seed = whole_number(seed, "seed", 0, 2**32 - 1)
        name, config = open_ended(learner, label_share, boundaries)
        return cls(make_learner(name, spec, config, seed, check_device(device)), names)

    def check_names(self) -> None:
        """Raises ValueError unless each class has a name: `learner.add_classes` adds classes without one."""
        names, needed = self.class_names, self.learner.spec.num_classes
        if isinstance(names, str) or not all(isinstance(name, str) for name in names) or len(names) != needed:
            raise ValueError(f"class_names: {needed} names are needed, one for each class of the learner")

    def add_classes(self, names: Sequence[str], task: int | None = None) -> None:
        """Add classes. The logits of the others stay equal to 1e-5 until the next learning step.

        They are added to the given task; without one to the only task, or to a new task if there are several.
        """
        names = check_new_names(names, self.class_names)
        self.check_names()
        self.learner.add_classes(len(names), task)
        self.class_names = (*self.class_names, *names)

    def rename_class(self, old: str, new: str) -> None:
        """Give a class another name. What was learned, and its number, stay as they are."""
        number, [name] = self.class_number(old), check_new_names([new], self.class_names)
        self.class_names = (*self.class_names[:number], name, *self.class_names[number + 1 :])

    def remove_class(self, name: str) -> None:
        """Remove a class with its stored and held-out images. The logits of the others stay equal to 1e-5.

        What weights have learned from the images remains; nothing of it remains in a closed-form head.
        """
        number = self.class_number(name)
        self.relabel_examples(dict.fromkeys(self.examples.of_class(number), UNLABELLED))
        self.learner.remove_class(number)
        self.examples.remove_number(number)
        self.held_out = self.held_out.without_class(number)
        self.class_names = (*self.class_names[:number], *self.class_names[number + 1 :])

    def class_number(self, name: str) -> int:
        self.check_names()
        if name not in self.class_names:
            hint = suggest(name, self.class_names) if isinstance(name, str) else ""
            classes = f"{pluralise(len(self.class_names), 'class', 'classes')} ({join_first(self.class_names)})"
            raise ValueError(f"names: {name!r} is not one of the model's {classes}{hint}")
        return self.class_names.index(name)

    # Learning

    def learn(
        self,
        images: Any,
        labels: Any = None,
        *,
        batch_size: int = 10,
        add_classes: bool = False,
        task: int | None = None,
        repeated: bool = False,
    ) -> dict[str, float]:
        """Learn from images in the given order, in batches. Returns the mean of each loss.

        Images have any form that `predict` accepts. Labels are class names, None for an image without a label; or one
        name for all images. An unknown name is an error, unless `add_classes` is set: then it is a new class. Images
        without any label are an error if the learner does not learn from them.

        For a task-aware model `task` is the task of the images, by default that of their classes; new classes without
        a task form a new task. Call `model.learner.end_task()` at the end of a task.

        `repeated`: the images were learned before, for example in an earlier epoch, and are not stored again.
        """
        batch_size = whole_number(batch_size, "batch_size")
        self.check_names()
        pixels = self.pixels_to_learn(images)
        names = list_names(labels, len(pixels))
        if set(names) == {None} and not self.learner.learns_unlabelled(self.learner.config):
            raise ValueError(
                "labels: none is known, and this model has no slow phase (learner.slow.rounds is 0 or not set); "
                'give some labels, or create a new model with preset "trained" and label_share=0.1'
            )
        new = [name for name in dict.fromkeys(names) if name is not None and name not in self.class_names]
        if new and not add_classes:
            remedy = f"add_classes=True adds it{suggest(new[0], self.class_names)}"
            raise ValueError(f"labels: {new[0]!r} is not one of the model's {len(self.class_names)} classes; {remedy}")
        spec = self.learner.spec.with_classes(len(new), task) if new else self.learner.spec
        number_of = {name: number for number, name in enumerate((*self.class_names, *new))}
        numbers = torch.tensor([UNLABELLED if name is None else number_of[name] for name in names], dtype=torch.int64)
        task_ids = find_tasks(numbers, spec.class_mask, task)
        if new:
            self.add_classes(new, task)
        return self.learn_batches(pixels, numbers, task_ids, batch_size, repeated)

    def pixels_to_learn(self, images: Any) -> Tensor:
        """The images as uint8 [B, C, H, W], in the size of the model."""
        shape, device = self.learner.spec.image_shape, self.learner.class_mask.device
        pixels = pixels_of(images, shape)
        if pixels.dtype == torch.uint8 and pixels.dim() == 4 and 0 not in pixels.shape:
            pixels = pixels if tuple(pixels.shape[1:]) == shape else pixels_of(list(pixels), shape)
        self.learner.input_check.check_images(pixels := pixels.to(device), device, shape[1:])
        return pixels

    def learn_batches(
        self, pixels: Tensor, numbers: Tensor, task_ids: Tensor, size: int, repeated: bool = False
    ) -> dict[str, float]:
        device, steps = self.learner.class_mask.device, []
        if self.engine is None or self.engine.learners != [self.learner] or self.engine.device != device:
            self.engine = Engine([self.learner], precision_on(device))
        for some, given, tasks in zip(pixels.split(size), numbers.split(size), task_ids.split(size), strict=True):
            if len(some) > 0:  # an empty tensor is split into one empty part
                labels = given.to(device) if (given != UNLABELLED).any() else None
                batch = Batch(some, labels, tasks.to(device), repeated)
                if batch.storable and self.keeps_examples:
                    batch = self.with_features(batch)
                steps += self.engine.step([batch])
        return finite_means(steps)

    # Examples of a closed-form head

    @property
    def keeps_examples(self) -> bool:
        """Whether the features of what was learned are kept; those of an encoder that learns would soon be wrong."""
        return self.learner.closed_form is not None and all(
            part.frozen for part in self.learner.modules() if isinstance(part, BaseEncoder)
        )

    def check_keeps_examples(self, what: str) -> None:
        if not self.keeps_examples:
            raise ValueError(f"{what}: needs a model with a closed-form head on a frozen encoder, as new models have")

    def with_features(self, batch: Batch) -> Batch:
        """Keep the features of a batch, and add them to it. An image that was learned before counts once.

        Its last label counts. One that was learned with the same label is unlabelled in the returned batch.
        """
        assert batch.labels is not None
        labels = batch.labels.cpu().clone()
        digests = [pixel_digest(image.numpy().tobytes()) for image in batch.images.cpu()]
        last = {digest: row for row, digest in enumerate(digests) if labels[row] != UNLABELLED}
        known = self.examples.labels
        earlier = {digest: known[digest] for digest in last if digest in known}
        self.withdraw([digest for digest, label in earlier.items() if label != labels[last[digest]]])
        for row, digest in enumerate(digests):
            if last.get(digest) != row or earlier.get(digest) == labels[row]:
                labels[row] = UNLABELLED
        features, new = self.learner.features(batch.images), (labels != UNLABELLED).nonzero().flatten()
        if len(new) > 0:
            rows = [digests[row] for row in new.tolist()]
            self.examples.add(rows, labels[new], features.cpu()[new])
        return replace(batch, labels=labels.to(batch.labels.device), features=features)

    def withdraw(self, digests: Collection[bytes]) -> None:
        """Unlearn images by the digests of their pixels; the rest of a closed-form head is as if it never saw them."""
        self.relabel(dict.fromkeys(digests))

    def relabel(self, names: Mapping[bytes, str | None]) -> None:
        """Correct the classes of learned images, given by the digests of their pixels; None withdraws an image.

        The memory keeps no image whose class was wrong, and weights keep what they have learned.
        """
        if not names:
            return
        labels = {digest: UNLABELLED if name is None else self.class_number(name) for digest, name in names.items()}
        remove_stored(self.learner, lambda _, digest, label: labels.get(digest, label) != label)
        known = self.examples.labels
        self.relabel_examples({digest: label for digest, label in labels.items() if known.get(digest, label) != label})

    def relabel_examples(self, labels: Mapping[bytes, int]) -> None:
        """Change the labels of examples; UNLABELLED removes them."""
        if (head := self.learner.closed_form) is not None and labels:
            features, old = self.select(labels)
            head.remove(features, old)
            head.add(features, torch.tensor([*labels.values()], device=old.device))
            self.examples.relabel(labels)

    def calibrate(self) -> None:
        """Fit the probabilities of a closed-form head, and the novelty of unknown images, to changed examples."""
        if (head := self.learner.closed_form) is not None and not self.examples.calibrated:
            head.calibrate(*self.select(self.examples.sample(CALIBRATION_SIZE)))
            self.examples.calibrated = True

    def select(self, digests: Collection[bytes]) -> tuple[Tensor, Tensor]:
        """Features and labels of examples, on the device of the learner."""
        features, labels = self.examples.select(digests)
        return features.to(self.learner.class_mask.device), labels.to(self.learner.class_mask.device)

    # Predicting

    def predict(
        self,
        images: Any,
        task: int | None = None,
        top: int = 5,
        on_error: OnError = "stop",
        unknown: float = UNKNOWN_SHARE,
    ) -> list[Prediction]:
        """Predict classes of images: a file, a folder, bytes, a Pillow image, an array [H, W, 3], or a list of these.

        An array [B, H, W, C] or a tensor uint8 [B, C, H, W] is a batch of images of any size.

        A task-aware model has only learned to discriminate the classes within a task: pass the task (0, 1, ...).
        Without it the prediction is made among all classes and is right far less often, which its probabilities do not
        show. A task-free model needs no task.

        With a closed-form head, images that are far from all classes are predicted as `unknown`: about this share of
        the images of known classes as well; 0: none.

        If images cannot be read, a ValueError names all of them. With `on_error="skip"` the others are predicted, and
        these get a prediction without classes, whose `error` is the reason.
        """
        choose(on_error, get_args(OnError), "on_error")
        top = whole_number(top, "top")
        self.check_names()
        if not self.class_names:
            remedy = "add some by `dualnet learn`, in Python by learn(images, labels, add_classes=True)"
            raise ValueError(f"the model has no classes yet; {remedy}")
        shape = self.learner.spec.image_shape
        pixels, errors = readable(images, shape) if on_error == "skip" else (pixels_of(images, shape), {})
        probabilities, novelty = (part.cpu() for part in self.outputs(pixels, task))
        is_unknown = novelty > self.threshold(unknown)
        class_mask = self.learner.spec.class_mask.cpu()
        allowed = class_mask.any(dim=0) if task is None else class_mask[task]
        candidates = allowed.nonzero().flatten()
        values, order = probabilities[:, candidates].sort(dim=1, descending=True, stable=True)
        numbers: list[list[int]] = candidates[order[:, :top]].tolist()
        names = [tuple(self.class_names[number] for number in row) for row in numbers]
        answers = map(Prediction, names, map(tuple, values[:, :top].tolist()), is_unknown.tolist())
        failed = {number: Prediction((), (), False, *error.reasons.values()) for number, error in errors.items()}
        return [failed.get(number) or next(answers) for number in range(len(names) + len(failed))]

    def threshold(self, unknown: float) -> float:
        """The novelty that this share of the images of known classes exceeds; infinite without a closed-form head."""
        if not 0 <= unknown <= 1:
            raise ValueError(f"unknown: {unknown!r} is not a share from 0 to 1")
        self.calibrate()
        head = self.learner.closed_form
        return math.inf if head is None or unknown == 0 else head.threshold(unknown)

    def evaluate(self, images: Any, labels: Any) -> Evaluation:
        """Predict images whose classes are known: `model.evaluate(files, names).accuracy`.

        Images have any form that `predict` accepts, and labels are class names. Of a task-aware model every image is
        predicted among the classes of its task, unlike by `predict` without a task.
        """
        pixels = pixels_of(images, self.learner.spec.image_shape)
        names = [name for name in list_names(labels, len(pixels)) if name is not None]
        if len(names) != len(pixels):
            raise ValueError("labels: one is None; give the class of each image")
        number_of = {name: self.class_number(name) for name in dict.fromkeys(names)}
        numbers = torch.tensor([number_of[name] for name in names], dtype=torch.int64)
        task_ids = find_tasks(numbers, self.learner.spec.class_mask.cpu(), None)
        has_tasks = self.learner.spec.num_tasks > 1
        predictions: dict[int, Prediction] = {}
        for task in task_ids.unique().tolist():
            rows = (task_ids == task).nonzero().flatten()
            predictions |= zip(rows.tolist(), self.predict(pixels[rows], task if has_tasks else None), strict=True)
        return Evaluation(tuple(names), tuple(predictions[row] for row in range(len(names))))

    def probabilities(self, images: Any, task: int | None = None) -> Tensor:
        """Probabilities, float [B, classes]; 0 for classes outside of the task."""
        return self.outputs(images, task)[0]

    def outputs(self, images: Any, task: int | None = None) -> tuple[Tensor, Tensor]:
        """Probabilities, and the novelty of each image; 0 without a closed-form head."""
        self.calibrate()
        device = self.learner.class_mask.device
        if task is not None:
            task = check_task(task, self.learner.spec.num_tasks)
        pixels = pixels_of(images, self.learner.spec.image_shape).to(device, non_blocking=device.type == "cuda")
        self.learner.input_check.check_query(pixels, None, device)
        outputs = [self.logits_and_novelty(part, task) for part in pixels.split(PREDICT_SIZE)]
        logits, novelty = (torch.cat(part) for part in zip(*outputs, strict=True))
        return F.softmax(logits, dim=1), novelty

    def logits_and_novelty(self, pixels: Tensor, task: int | None) -> tuple[Tensor, Tensor]:
        task_ids = None if task is None else torch.full((len(pixels),), task, device=pixels.device)
        if (head := self.learner.closed_form) is None:
            return self.learner.logits(pixels, task_ids), torch.zeros(len(pixels), device=pixels.device)
        logits, novelty = head.outputs(head.whitened(self.learner.features(pixels)))
        return self.learner.mask_logits(logits, task_ids), novelty

    def suggest(self, images: Any, count: int = 20) -> list[int]:
        """The numbers of the images that would teach most if they had labels, the most instructive first.

        Images have any form that `predict` accepts. Learned and repeated images are not suggested.
        """
        count = whole_number(count, "count")
        self.check_suggests()
        images = images if getattr(images, "ndim", 0) == 4 else list_images(images)
        numbers, features = dict.fromkeys(self.examples.labels, -1), {}  # by digest; -1: learned
        for start in range(0, len(images), PREDICT_SIZE):
            pixels = self.pixels_to_learn(images[start : start + PREDICT_SIZE])
            digests = [pixel_digest(image.numpy().tobytes()) for image in pixels.cpu()]
            rows = [row for row, digest in enumerate(digests) if numbers.setdefault(digest, start + row) == start + row]
            if rows:
                features |= zip([digests[row] for row in rows], self.learner.features(pixels[rows]), strict=True)
        return [numbers[digest] for digest in self.most_instructive(features, count)]

    def check_suggests(self) -> None:
        self.check_keeps_examples("suggest")
        if not self.examples:
            raise ValueError("suggest: the model has learned no images yet; label a few of each class first")

    def most_instructive(self, features: Mapping[bytes, Tensor], count: int) -> list[bytes]:
        """As `suggest`, of images given by the digests of their pixels."""
        new, head = [digest for digest in features if digest not in self.examples.labels], self.learner.closed_form
        if head is None or not new:
            return []
        self.calibrate()
        learned, _ = self.select(self.examples.labels)
        candidates = torch.stack([features[digest] for digest in new]).to(learned.device)
        return [new[row] for row in most_instructive(head, learned, candidates, count)]

    # Saving

    def save(self, folder: str | Path) -> None:
        """Save the whole state: a model from `dualnet.load` continues to learn with the same bits.

        The folder must be new, or hold what this model was loaded from or saved as, which it replaces.
        """
        check_place(Path(folder), self)
        write(Path(folder), self)


def check_place(folder: Path, model: Model | None = None) -> None:
    """Raises ValueError if a save would overwrite anything but the model itself, or is not possible."""
    own = (CHECKPOINTS, LOCK_FILE)
    try:
        others = [path for path in folder.iterdir() if path.name not in own] if folder.exists() else []
    except (NotADirectoryError, PermissionError) as error:
        raise ValueError(f"{folder}: cannot be used ({error.strerror}); choose another folder") from error
    if (folder / EXPERIMENT_FILE).exists():
        raise ValueError(f"{folder}: holds a run; save the model to a folder of its own")
    if not ModelFolder(folder).holds_model:
        if others:
            raise ValueError(f"{folder}: holds other files; save the model to a folder of its own")
    elif model is not None and checkpoint.newest_digest(folder / CHECKPOINTS) not in model.saved:
        raise ValueError(f"{folder}: holds another model; choose another folder")


def write(folder: Path, model: Model, kept: int = 1, **more: Any) -> None:
    """Write a checkpoint and keep the `kept` newest. `load_with_state` returns what `more` it contains."""
    model.check_names()
    state = {
        **saved_learner.describe(model.learner, model.class_names),
        **saved_learner.state_of(model.learner),
        "held_out": model.held_out.content(),
        "examples": model.examples.content(),
        "sessions": model.sessions,
        **more,
    }
    checkpoints = ModelFolder(folder).checkpoints
    atomic.make_folder(checkpoints, "choose another folder")
    atomic.remove_temporary(checkpoints)
    number = max(checkpoint.steps(checkpoints), default=0) + 1
    model.saved.add(checkpoint.write(checkpoints, number, checkpoint.snapshot(state), kept))


def load(folder: str | Path, device: str = "cpu", trust: bool = False) -> Model:
    """Load the newest checkpoint of a run or of a saved model: `load(folder).predict("cat.jpg")`.

    It can continue to learn. If it is task-aware, `predict` needs the task. A folder may name a learner from outside
    this package; its code is imported only with `trust`.
    """
    model, state = load_with_state(Path(folder), device, trust)
    if state["unfinished"]:
        warnings.warn(state["unfinished"], stacklevel=2)
    return model


def load_with_state(folder: Path, device: str, trust: bool | Collection[str]) -> tuple[Model, dict[str, Any]]:
    """The model, and the content of its checkpoint, with a line about what is `unfinished`.

    `trust`: code from outside that may be imported (check_trusted).
    """
    device = check_device(device)
    saved = checkpoint.newest(folder / CHECKPOINTS)
    if saved is None:
        raise ValueError(describe_missing(folder))
    step, state, digest = saved
    saved_learner.check_trusted(state.get("options"), folder, trust)
    try:
        learner, names = saved_learner.make(state, device)
        held_out = read_held_out(state.get("held_out", {}), learner.spec)
        state |= {"step": step, "unfinished": describe_unfinished(folder, state)}
        # A service or an unfinished session continues from more than a model: `Model.save` must not replace that.
        is_only_model = "serve" not in state and not state["unfinished"]
        saved = {digest} if is_only_model else set()
        examples = read_examples(state.get("examples", {}), learner)
        if "experiment" in state:
            learner.calibrate()
        return Model(learner, names, held_out, examples, state.get("sessions", []), saved), state
    except READ_ERRORS as error:
        raise ValueError(describe_file_error(checkpoint.file_of(folder / CHECKPOINTS, step), error)) from error


def describe_unfinished(folder: Path, state: Mapping[str, Any]) -> str:
    """What is unfinished about the model of a checkpoint: its run, or its session. Empty if nothing is."""
    if "experiment" in state and not (folder / RESULT_FILE).exists():
        return f"{folder}: this run is at step {state['step']} and not finished; `dualnet run` continues it"
    session = state.get("session", {})
    if session and "after" not in session:
        done = f"at step {session['step']} of {session['steps']}"
        return f"{folder}: its session is {done} and not finished; the same `dualnet learn` continues it"
    return ""


def check_device(device: str) -> str:
    """The device. Raises ValueError if it is not available."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: {device!r} cannot be used ({reason}); give cpu or cuda") from None
    return device
