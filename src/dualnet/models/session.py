"""A session of `dualnet learn`: a model learns from folders of images, with checkpoints from which it is resumed."""

import time
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualnet.data.decode import MAX_SIZE, OnError
from dualnet.data.image_cache import CachedImages
from dualnet.data.image_folder import ImageFiles, read_files
from dualnet.data.inputs import square_side
from dualnet.experiments import checkpoint
from dualnet.experiments.evaluation import accuracy
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.record import MODEL_FILE, digest_of
from dualnet.experiments.run import check_weights
from dualnet.experiments.run_folder import RunFolder, same_folder
from dualnet.experiments.stop import Stop, StopRequested
from dualnet.files import read_json
from dualnet.models import model_folder
from dualnet.models.class_names import task_ids_of
from dualnet.models.held_out import HeldOut, is_held_out, pixel_digest
from dualnet.models.model import NEW_MODEL, SESSION_RESULTS, Model, load_with_state
from dualnet.models.stored_examples import remove_duplicates, remove_stored
from dualnet.options import check_at_least
from dualnet.stream.stream import shuffled
from dualnet.text import join_first, pluralise

MODEL_OPTIONS = ("learner", "image_size", "seed", "held_out_every")
MEMORY_SAMPLE = 500  # stored images of the earlier classes, on which forgetting is measured


@dataclass(frozen=True)
class LearnOptions:
    """Options of a session. From `learner` on they are those of a new model, and later sessions keep them."""

    train: str  # the folder of the images, with a sub-folder for each class
    unlabelled: str | None = None  # a folder of images without a class
    test: str | None = None  # a folder with a sub-folder for each class
    on_error: OnError = "stop"
    task: int | None = None  # of a task-aware model
    batch_size: int = 10
    epochs: int = 1  # passes over the images
    learner: dict[str, Any] = field(default_factory=lambda: dict(NEW_MODEL))
    image_size: int = 64  # side in pixels
    seed: int = 0  # the order of the images follows from it too
    held_out_every: int = 0  # about one image in so many is not learned, but tested; 0: none

    def __post_init__(self) -> None:
        HeldOut(self.held_out_every)  # checks it
        check_at_least(self, 1, "batch_size", "epochs")
        check_at_least(self, 1, "image_size", most=MAX_SIZE)
        for option, other in (("--unlabelled", self.unlabelled), ("--test", self.test)):
            if other is not None and same_folder(other, self.train):
                raise ValueError(f"{option} {other}: is the folder of the training images; name another one")


class Session:
    """A model, the images that it learns, and its progress.

    `record` is stored in the checkpoints: a digest of the plan, the steps so far, the accuracy before the session.
    """

    def __init__(self, model: Model, options: LearnOptions) -> None:
        self.model, self.options, self.task = model, options, options.task
        size = square_side(model.learner.spec.image_shape)
        self.test = None if options.test is None else read_files(options.test, None, size, options.on_error)
        self.files = read_files(options.train, options.unlabelled, size, options.on_error)
        self.new = [name for name in self.files.classes if name not in model.class_names]
        plan = {name: getattr(options, name) for name in ("batch_size", "epochs", "task")}
        plan |= {"images": self.files.digest, "test": self.test and self.test.digest}
        self.record: dict[str, Any] = {"plan": digest_of(plan), "step": 0}

    # Images

    @cached_property
    def digests(self) -> list[bytes]:
        return file_digests(self.files)

    @cached_property
    def held_out(self) -> np.ndarray:
        """Which rows of `files` are held out, bool [N]; of unlabelled images too: their labels may come later."""
        every = self.model.held_out.every
        return np.array([every > 0 and is_held_out(self.digests[row], every) for row in range(len(self.files))])

    @cached_property
    def batches(self) -> list[Tensor]:
        """Rows of `files`, shuffled by the seed of the model; batches without labels are spread evenly."""
        seed = self.model.learner.generator.initial_seed()
        labelled = torch.tensor([name is not None for name in self.files.names])
        learned = torch.from_numpy(~self.held_out)
        parts = [rows.nonzero().flatten() for rows in (labelled & learned, ~labelled & learned) if rows.any()]
        batches = []
        for epoch in range(self.options.epochs):
            orders = [rows[shuffled(len(rows), seed, 2 * epoch + part)] for part, rows in enumerate(parts)]
            batches += interleaved(*(order.split(self.options.batch_size) for order in orders))
        return batches

    def begin(self) -> None:
        """Check the classes, evaluate the model on those that it knows, and add the new ones."""
        model, known = self.model, {plain_name(name): name for name in self.model.class_names}
        for name in self.new:
            if (clash := known.setdefault(plain_name(name), name)) != name:
                raise ValueError(f"class {name!r} differs from {clash!r} only in case or accents; rename the folder")
        if self.test is not None and (others := set(self.test.classes) - {*model.class_names, *self.new}):
            if others == set(self.test.classes):
                raise ValueError(
                    f"--test: {min(others)!r} and the others are not classes of the model; name another folder"
                )
            warnings.warn(f"--test: {join_first(sorted(others))}: left out, unknown to the model", stacklevel=2)
        if None in self.files.names and not model.learner.learns_unlabelled(model.learner.config):
            raise ValueError(
                "--unlabelled: this model has no slow phase (learner.slow.rounds is 0 or not set); leave it out, "
                "or create a new model with --unlabelled from the first call on"
            )
        self.check_tasks()
        self.warn_of_ambiguous_images()
        self.hold_out()
        self.warn_of_learned_test_images()
        self.record |= {"steps": len(self.batches), "old": len(model.class_names), "memory": self.memory_sample()}
        self.record["before"] = self.measure()
        self.remove_corrected()
        if self.new:
            model.add_classes(self.new, self.task)

    def check_tasks(self) -> None:
        """Raises ValueError unless the task of every image is known."""
        spec, names = self.model.learner.spec, [*self.model.class_names, *self.new]
        mask = (spec.with_classes(len(self.new), self.task) if self.new else spec).class_mask
        numbers = torch.tensor([names.index(name) for name in self.files.classes])
        task_ids_of(numbers, mask, self.task)
        if len(mask) > 1 and self.task is None and None in self.files.names:
            if len(mask) == spec.num_tasks:
                raise ValueError("--task: this model is task-aware; give the task of the unlabelled images")
            self.record["new_task"] = len(mask) - 1

    def warn_of_ambiguous_images(self) -> None:
        """The same pixels in the folders of several classes: a mistake in the labels."""
        rows = defaultdict[bytes, dict[str, int]](dict)  # by digest: a row of each class
        for row, (digest, name) in enumerate(zip(self.digests, self.files.names, strict=True)):
            if name is not None:
                rows[digest].setdefault(name, row)
        if several := [[*classes.items()][:2] for classes in rows.values() if len(classes) > 1]:
            files = [
                Path(self.options.train, name, Path(self.files.decoded.file(row)).name) for name, row in several[0]
            ]
            which = f"{pluralise(len(several), 'image is', 'images are')} in the folders of several classes"
            warnings.warn(f"{which}, first {files[0]} and {files[1]}: keep each in one of them", stacklevel=2)

    def warn_of_learned_test_images(self) -> None:
        if self.test is None:
            return
        learned = {digest for digest, held_out in zip(self.digests, self.held_out, strict=True) if not held_out}
        if rows := [row for row, digest in enumerate(file_digests(self.test)) if digest in learned]:
            first = Path(self.test.decoded.file(rows[0]))
            which = f"{len(rows)} of {pluralise(len(self.test), 'image')}, first {first.parent.name}/{first.name}"
            warnings.warn(f"--test: this session learns {which}; give other test images", stacklevel=2)

    def hold_out(self) -> None:
        """Add the held-out images of the session to those that the model keeps."""
        names, held_out = [*self.model.class_names, *self.new], self.held_out
        learned = {name for name, out in zip(self.files.names, held_out, strict=True) if not out}
        if missing := [name for name in self.new if name not in learned]:
            reason = "all its images are held out for testing; add images, or leave the class out"
            raise ValueError(f"class {missing[0]!r} has no training images: {reason}")
        labels = {row: names.index(name) for row, name in enumerate(self.files.names) if name and held_out[row]}
        images = self.files.decoded[np.array([*labels], dtype=int)]
        self.model.held_out = self.model.held_out.with_images(images, labels.values())

    def remove_corrected(self) -> None:
        """Remove from the memory images that come again with another label: they are offered to it anew."""
        labels = defaultdict[bytes, set[str]](set)
        for digest, name, held_out in zip(self.digests, self.files.names, self.held_out, strict=True):
            if name is not None and not held_out:
                labels[digest].add(name)
        remove_stored(self.model, lambda _, digest, name: digest in labels and name not in labels[digest])

    # Learning

    def run(self, out: Path, display: RunDisplay, save_every: int) -> None:
        """Learn from the last saved step to the end."""
        steps = len(self.batches)
        if self.record["step"] == 0:
            self.save(out)  # a folder that cannot be written to is noticed at once
        display.begin(str(out), steps, self.record["step"])
        try:
            with Stop() as stop:
                for step in range(self.record["step"], steps):
                    display.losses(self.learn(step))
                    display.step(0, 1, step + 1)
                    self.record["step"] = step + 1
                    if step + 1 < steps and (stop.requested or (step + 1) % save_every == 0):
                        self.save(out)
                        if stop.requested:
                            raise StopRequested(f"stopped after step {step + 1} of {steps}; the same command continues")
        finally:
            display.end()
        learner = self.model.learner
        if learner.needs_boundaries(learner.config):
            learner.end_task()  # a session is a task
        remove_duplicates(self.model)
        self.record["after"] = self.measure()
        del self.record["memory"]
        self.model.sessions = [*self.model.sessions, self.result()]
        self.save(out)

    def result(self) -> dict[str, Any]:
        """What is kept of a finished session; `images` are those that were learned."""
        counts = {"images": int((~self.held_out).sum()), "classes": len(self.model.class_names)}
        return {"time": time.time(), **counts, **{key: self.record[key] for key in SESSION_RESULTS}}

    def learn(self, step: int) -> dict[str, float]:
        rows, repeated = self.batches[step], step >= len(self.batches) // self.options.epochs
        names = [self.files.names[row] for row in rows.tolist()]
        task = self.record.get("new_task", self.task) if names[0] is None else self.task
        images = torch.from_numpy(self.files.decoded[rows.numpy()])
        return self.model.learn(images, names, batch_size=len(names), task=task, repeated=repeated)

    def save(self, out: Path) -> None:
        check_weights(self.model.learner)
        self.model.save_with_state(out, session=self.record)

    # Forgetting

    def memory_sample(self) -> dict[str, Tensor]:
        """Up to MEMORY_SAMPLE examples from the memory, before the session."""
        memory = next((memory for memory in self.model.learner.memories if memory.filled.any()), None)
        if memory is None:
            return {}
        slots = memory.filled.nonzero().flatten()
        slots = slots[shuffled(len(slots), 0, 0)[:MEMORY_SAMPLE].to(slots.device)]
        return {part: getattr(memory, part)[slots].clone() for part in ("images", "labels", "task_ids")}

    def measure(self) -> dict[str, list[float]]:
        """Results of `measured`: in the memory, and of other images of old and of new classes."""
        model, old, found = self.model, self.record["old"], {}
        device, num_classes = model.learner.class_mask.device, {"old": old, "new": len(model.class_names) - old}
        if stored := self.record["memory"]:
            parts = (stored[part].to(device) for part in ("images", "labels", "task_ids"))
            found["memory"] = measured(model, old, *parts)
        for kind, images, labels in self.test_sets():
            known = (labels >= 0) & (labels < len(model.class_names))
            for part, rows in {"old": known & (labels < old), "new": known & (labels >= old)}.items():
                if rows.any():
                    shown = torch.from_numpy(images[np.flatnonzero(rows)]).to(device)
                    given = torch.from_numpy(labels[rows])
                    tasks = task_ids_of(given, model.learner.spec.class_mask.cpu(), None)
                    found[kind + part] = measured(model, num_classes[part], shown, given.to(device), tasks.to(device))
        return found

    def test_sets(self) -> Iterator[tuple[str, np.ndarray | CachedImages, np.ndarray]]:
        """Prefix of the results, images and class numbers; -1 for images of unknown classes."""
        held_out = self.model.held_out
        yield "held_out_", held_out.images.numpy(), held_out.labels.numpy()
        if self.test is not None:
            numbers = {name: number for number, name in enumerate(self.model.class_names)}
            yield "", self.test.decoded, np.array([numbers.get(str(name), -1) for name in self.test.names])


def check_place(out: Path, options: LearnOptions) -> None:
    """Raises ValueError if the model cannot be saved to this path, or would be taken for images."""
    if not (out / MODEL_FILE).is_file():
        model_folder.check_free(out)
    for folder in filter(None, (options.train, options.test, options.unlabelled)):
        if out.resolve().is_relative_to(Path(folder).expanduser().resolve()):
            raise ValueError(f"--out {out}: is inside of {folder}, a folder of images; choose a folder outside of it")


def start(source: Path | None, options: LearnOptions, out: Path, device: str, trust: bool) -> Session:
    """A new session, or the same one from its folder, stopped or finished. Raises ValueError if it holds another.

    The folder must be locked, so that no other process changes the model after it is loaded.
    """
    in_place = source is not None and same_folder(str(source), str(out))
    source_digest = None if in_place else digest_of(origin(source, options))
    if checkpoint.steps(RunFolder(out).checkpoints):  # none in a new folder, or if killed before the first save
        named = model_folder.code_paths(options.learner).values()  # by the command itself
        model, state = load_with_state(out, device, trust or named)
        session, record = Session(model, options), state.get("session") or {}
        same = record.get("plan") == session.record["plan"] and (in_place or record.get("source") == source_digest)
        if same and "after" not in record and state["device"] != model.learner.class_mask.device.type:
            raise ValueError(
                f"--device: this session was started on {state['device']}; continue there, or choose another --out"
            )
        if same:
            session.record = record
            return session
        if "serve" in state:
            raise ValueError(f"--out {out}: belongs to a service; use `dualnet teach`, or choose another --out")
        if model.unfinished:  # also in place: the images that it has not learned yet would be lost
            remedy = "repeat its command to finish it, or choose another --out"
            raise ValueError(f"--out {out}: holds an unfinished session with other images or options; {remedy}")
        if not in_place:
            remedy = f"to continue with it: dualnet learn {out} {options.train} --out {out}"
            raise ValueError(f"--out {out}: holds a model that learned with other images or options; {remedy}")
    else:
        if source is None:
            model = new_model(options, device)
        else:
            model, _ = load_with_state(source, device, trust)
        session = Session(model, options)
    if model.unfinished:
        warnings.warn(model.unfinished, stacklevel=2)
        model.unfinished = ""
    session.begin()
    session.record["source"] = source_digest
    return session


def new_model(options: LearnOptions, device: str) -> Model:
    label_share = 0.0 if options.unlabelled else 1.0
    given = {"learner": options.learner, "image_size": options.image_size, "seed": options.seed}
    model = Model.create(**given, device=device, label_share=label_share)
    model.held_out = HeldOut(options.held_out_every)
    return model


def origin(source: Path | None, options: LearnOptions) -> Mapping[str, Any]:
    """What a session starts from: the newest checkpoint of a model or run, or the options of a new model."""
    if source is None:
        return {option: getattr(options, option) for option in MODEL_OPTIONS}
    folder = RunFolder(source).checkpoints
    steps = checkpoint.steps(folder)
    newest = read_json(checkpoint.files_of(folder, steps[-1])[0], relaxed=True)["digest"] if steps else ""
    return {"checkpoint": newest}


def file_digests(files: ImageFiles) -> list[bytes]:
    """Of the pixels of each row."""
    return [pixel_digest(files.decoded[row].tobytes()) for row in range(len(files))]


def measured(model: Model, num_classes: int, images: Tensor, labels: Tensor, task_ids: Tensor) -> list[float]:
    """Accuracy in percent, the number of images, and that of the classes of which there are none."""
    untested = num_classes - len(labels.unique())
    return [accuracy(model.learner.logits, images, labels, task_ids).item(), len(labels), untested]


def interleaved(*parts: Sequence[Any]) -> list[Any]:
    """All items, each sequence in its own order and spread evenly.

    >>> interleaved("abcd", "12")
    ['a', '1', 'b', 'c', '2', 'd']
    """
    positions = [((number + 0.5) / len(part), item) for part in parts for number, item in enumerate(part)]
    return [item for _, item in sorted(positions, key=lambda pair: pair[0])]


def plain_name(name: str) -> str:
    """The name without differences that a file system or a reader may not see.

    >>> plain_name("Café") == plain_name("cafe\\u0301")
    True
    """
    return unicodedata.normalize("NFC", name).casefold().strip()
