"""A model goes on learning from folders of images: one session, saved on the way, which the same command takes up."""

import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualnet.data.decode import OnError
from dualnet.data.image_files import read_files
from dualnet.files import read_json
from dualnet.options import check_at_least
from dualnet.runs import checkpoint, model_folder
from dualnet.runs.class_names import task_ids_of
from dualnet.runs.evaluation import accuracy
from dualnet.runs.model import NEW_MODEL, Model, load_with_state
from dualnet.runs.progress import RunDisplay
from dualnet.runs.record import digest_of
from dualnet.runs.run import check_weights
from dualnet.runs.run_folder import MODEL_FILE, RunFolder, same_folder
from dualnet.runs.stop import Stop, StopAsked
from dualnet.stream.stream import shuffled

REMEMBERED = 500  # stored images of the classes so far, on which forgetting is measured


@dataclass(frozen=True)
class LearnOptions:
    """Which images are learned, and how. Those of a new model: `learner`, `image_size` and `seed`."""

    train: str  # the folder of the images, with a sub-folder for each class
    unlabelled: str | None = None  # a folder of images without a class
    test: str | None = None  # a folder with a sub-folder for each class
    on_error: OnError = "stop"
    task: int | None = None  # of a task-aware model
    batch_size: int = 10
    epochs: int = 1  # passes over the images
    learner: dict[str, Any] = field(default_factory=lambda: dict(NEW_MODEL))
    image_size: int = 64  # side in pixels
    seed: int = 0  # of a new model; the order of the images is that of the model's seed

    def __post_init__(self) -> None:
        check_at_least(self, 1, "image_size", "batch_size", "epochs")
        for option, other in (("--unlabelled", self.unlabelled), ("--test", self.test)):
            if other is not None and same_folder(other, self.train):
                raise ValueError(f"{option} {other}: is the folder of the images to learn; name another one")


class Session:
    """A model, the images that it learns in this session, and how far it has come.

    `record` is what the checkpoints hold of it: the plan, by a digest; the steps done; what was measured before.
    """

    def __init__(self, model: Model, options: LearnOptions) -> None:
        self.model, self.options, self.task = model, options, options.task
        channels, height, width = model.learner.spec.image_shape
        if channels != 3 or height != width:
            raise ValueError(f"images are read as squares in colour; this model learned {channels}x{height}x{width}")
        self.test = None if options.test is None else read_files(options.test, None, height, options.on_error)
        self.files = read_files(options.train, options.unlabelled, height, options.on_error)
        self.new = [name for name in self.files.classes if name not in model.class_names]
        self.batches = self.make_batches()
        plan = {name: getattr(options, name) for name in ("batch_size", "epochs", "task")}
        plan |= {"images": self.files.digest, "test": self.test and self.test.digest}
        self.record: dict[str, Any] = {"plan": digest_of(plan), "step": 0, "steps": len(self.batches)}

    # What is learned

    def make_batches(self) -> list[Tensor]:
        """Rows of `files`, in an order that the seed of the model fixes; those without a class evenly in between."""
        seed = self.model.learner.generator.initial_seed()
        labelled = torch.tensor([name is not None for name in self.files.names])
        parts = [rows.nonzero().flatten() for rows in (labelled, ~labelled) if rows.any()]
        batches = []
        for epoch in range(self.options.epochs):
            orders = [rows[shuffled(len(rows), seed, 2 * epoch + part)] for part, rows in enumerate(parts)]
            batches += interleaved(*(order.split(self.options.batch_size) for order in orders))
        return batches

    def begin(self) -> None:
        """Check the classes, add those that are new, and measure what the model knows of the others."""
        model, known = self.model, {plain_name(name): name for name in self.model.class_names}
        for name in self.new:
            if (clash := known.setdefault(plain_name(name), name)) != name:
                raise ValueError(f"class {name!r} differs from {clash!r} in case or accents alone; rename the folder")
        if self.test is not None and (others := set(self.test.classes) - {*model.class_names, *self.new}):
            if others == set(self.test.classes):
                raise ValueError(
                    f"--test: {min(others)!r} and the others are no classes of the model; name another folder"
                )
            warnings.warn(f"--test: {', '.join(sorted(others))}: left out, no classes of the model yet", stacklevel=2)
        if None in self.files.names and not getattr(model.learner.config, "slow_rounds", 0):
            raise ValueError("--unlabelled: this model learns from labels alone (its learner.slow_rounds is 0 or none)")
        self.check_tasks()
        self.record |= {"old": len(model.class_names), "memory": self.remembered()}
        self.record["before"] = self.measure()
        if self.new:
            model.add_classes(self.new, self.task)

    def check_tasks(self) -> None:
        """Raises ValueError unless it is clear which task every image belongs to."""
        spec, names = self.model.learner.spec, [*self.model.class_names, *self.new]
        mask = (spec.with_classes(len(self.new), self.task) if self.new else spec).class_mask
        numbers = torch.tensor([names.index(name) for name in self.files.classes])
        task_ids_of(numbers, mask, self.task)
        if len(mask) > 1 and self.task is None and None in self.files.names:
            if len(mask) == spec.num_tasks:
                raise ValueError("--task: this model learned task-aware; say which task the unlabelled images are of")
            self.record["new_task"] = len(mask) - 1

    # Learning

    def run(self, out: Path, display: RunDisplay, save_every: int) -> None:
        """From the last step that was saved to the end."""
        steps = len(self.batches)
        if self.record["step"] == 0:
            self.save(out)  # what cannot be written is known before an hour's work
        display.begin(str(out), steps, self.record["step"])
        try:
            with Stop() as stop:
                for step in range(self.record["step"], steps):
                    display.losses(self.learn(self.batches[step]))
                    display.step(0, 1, step + 1)
                    self.record["step"] = step + 1
                    if step + 1 < steps and (stop.asked or (step + 1) % save_every == 0):
                        self.save(out)
                        if stop.asked:
                            raise StopAsked(f"stopped after step {step + 1} of {steps}; the same command goes on")
        finally:
            display.end()
        learner = self.model.learner
        if learner.needs_boundaries(learner.config):
            learner.end_task()  # the session was a task
        self.record["after"] = self.measure()
        del self.record["memory"]
        self.save(out)

    def learn(self, rows: Tensor) -> dict[str, float]:
        names = [self.files.names[row] for row in rows.tolist()]
        task = self.record.get("new_task", self.task) if names[0] is None else self.task
        images = torch.from_numpy(self.files.decoded[rows.numpy()])
        return self.model.learn(images, names, batch_size=len(names), task=task)

    def save(self, out: Path) -> None:
        model = self.model
        check_weights(model.learner)
        model_folder.write(out, model.learner, model.class_names, {**model.state(), "session": self.record})

    # What became of the classes that it knew

    def remembered(self) -> dict[str, Tensor]:
        """Stored images of the classes so far, some of them if they are many."""
        memory = next((memory for memory in self.model.learner.memories if memory.filled.any()), None)
        if memory is None:
            return {}
        slots = memory.filled.nonzero().flatten()
        slots = slots[shuffled(len(slots), 0, 0)[:REMEMBERED].to(slots.device)]
        return {part: getattr(memory, part)[slots].clone() for part in ("images", "labels", "task_ids")}

    def measure(self) -> dict[str, list[float]]:
        """Accuracy in percent, and of how many images: on the memory, and on test images of old and new classes."""
        model, old, found = self.model, self.record["old"], {}
        device = model.learner.class_mask.device
        if stored := self.record["memory"]:
            parts = (stored[part].to(device) for part in ("images", "labels", "task_ids"))
            found["memory"] = measured(model, *parts)
        if self.test is not None:
            numbers = {name: number for number, name in enumerate(model.class_names)}
            labels = np.array([numbers.get(str(name), -1) for name in self.test.names])
            for part, rows in {"old": (labels >= 0) & (labels < old), "new": labels >= old}.items():
                if rows.any():
                    images = torch.from_numpy(self.test.decoded[np.flatnonzero(rows)]).to(device)
                    given = torch.from_numpy(labels[rows])
                    tasks = task_ids_of(given, model.learner.spec.class_mask.cpu(), None)
                    found[part] = measured(model, images, given.to(device), tasks.to(device))
        return found


def start(source: Path | None, options: LearnOptions, out: Path, device: str, trust: bool) -> Session:
    """A session that begins, or the same one that the folder holds, stopped or finished. Others are refused."""
    in_place = source is not None and same_folder(str(source), str(out))
    begun = (out / MODEL_FILE).is_file()
    is_there = begun and any((out / "checkpoint").glob("step-*.json"))  # else it was killed before its first save
    made_of = None if in_place else digest_of(origin(source, options))
    if is_there:
        model, state = load_with_state(out, device, trust)
        session, there = Session(model, options), state.get("session") or {}
        same = there.get("plan") == session.record["plan"] and (in_place or there.get("source") == made_of)
        if same and "after" not in there and state["device"] != model.learner.class_mask.device.type:
            raise ValueError(f"--device: this session began on {state['device']}; go on there, or choose another --out")
        if same:
            session.record = there
            return session
        if not in_place:
            go_on = f"to go on with it: dualnet learn {out} {options.train} --out {out}"
            raise ValueError(f"--out {out}: holds a model that learned something else; {go_on}")
    else:
        if not begun:
            model_folder.check_free(out)
        if source is None:
            label_share = 0.0 if options.unlabelled else 1.0
            model = Model.create(**origin(None, options), device=device, label_share=label_share)
        else:
            model, _ = load_with_state(source, device, trust)
        session = Session(model, options)
    if model.unfinished:
        warnings.warn(model.unfinished, stacklevel=2)
        model.unfinished = ""
    session.begin()
    session.record["source"] = made_of
    return session


def origin(source: Path | None, options: LearnOptions) -> Mapping[str, Any]:
    """What a session begins with: the newest checkpoint of a model or run, or the options of a new model."""
    if source is None:
        return {option: getattr(options, option) for option in ("learner", "image_size", "seed")}
    folder = RunFolder(source).checkpoints
    steps = checkpoint.steps(folder)
    return {"checkpoint": read_json(checkpoint.files_of(folder, steps[-1])[0], relaxed=True)["digest"] if steps else ""}


def measured(model: Model, images: Tensor, labels: Tensor, task_ids: Tensor) -> list[float]:
    """Accuracy in percent, and the number of images."""
    return [accuracy(model.learner.logits, images, labels, task_ids).item(), len(labels)]


def interleaved(*parts: Sequence[Any]) -> list[Any]:
    """All in their order, the items of each evenly spread.

    >>> interleaved("abcd", "12")
    ['a', '1', 'b', 'c', '2', 'd']
    """
    places = [((number + 0.5) / len(part), item) for part in parts for number, item in enumerate(part)]
    return [item for _, item in sorted(places, key=lambda place: place[0])]


def plain_name(name: str) -> str:
    """
    >>> plain_name("Café") == plain_name("cafe\\u0301")
    True
    """
    return unicodedata.normalize("NFC", name).casefold().strip()
