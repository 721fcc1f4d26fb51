"""A session of `dualnet learn`: a model learns from folders of images, with checkpoints from which it is resumed."""

import time
import unicodedata
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dualnet.experiments import saved_learner
from dualnet.experiments.model_folder import ModelFolder
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.run import check_weights
from dualnet.experiments.run_folder import same_folder
from dualnet.experiments.stop import Stop, StopRequested
from dualnet.models.labels import find_tasks
from dualnet.models.memory_images import remove_duplicates, remove_stored
from dualnet.models.model import Model, load_with_state, write
from dualnet.models.session_accuracy import measure
from dualnet.models.session_images import SessionImages
from dualnet.models.session_plan import LearnOptions, digest_source, new_model
from dualnet.text import pluralise

RESULTS = ("old", "before", "after")  # number of classes before a session, accuracies


class Session:
    """A model, the images that it learns, and its progress.

    `record` is stored in the checkpoints: a digest of the plan, the steps so far, the accuracy before the session.
    """

    def __init__(self, model: Model, options: LearnOptions) -> None:
        self.model, self.options, self.task = model, options, options.task
        self.images = SessionImages(options, model)
        self.names = self.images.files.names
        self.new = [name for name in self.images.files.classes if name not in model.class_names]
        self.record: dict[str, Any] = {"plan": self.images.plan, "step": 0}

    def begin(self) -> None:
        """Check the classes, evaluate the model on those that it knows, and add the new ones."""
        self.check_names()
        self.check_tasks()
        if len(names := [*self.model.class_names, *self.new]) == 1:
            warnings.warn(f"{names[0]} is the only class; teach another one, or no prediction says much", stacklevel=2)
        if self.options.epochs > 1 and self.model.keeps_examples:
            raise ValueError("--epochs: with a closed-form head one pass learns all; leave it out")
        self.images.warn_of_ambiguous()
        self.hold_out()
        self.images.warn_of_learned_test_images()
        self.record |= {"steps": len(self.images.batches), "old": len(self.model.class_names)}
        self.record["before"] = self.measure()
        self.remove_corrected()
        if self.new:
            self.model.add_classes(self.new, self.task)

    def check_names(self) -> None:
        """Raises ValueError for classes that clash, and for images that the model cannot learn."""
        known = {normalise(name): name for name in self.model.class_names}
        for name in self.new:
            if (clash := known.setdefault(normalise(name), name)) != name:
                raise ValueError(f"class {name!r} differs from {clash!r} only in case or accents; rename the folder")
        tested = set() if self.images.test is None else set(self.images.test.classes)
        if others := tested - {*self.model.class_names, *self.new}:
            if others == tested:
                raise ValueError(
                    f"--test: {min(others)!r} and the others are not classes of the model; name another folder"
                )
            which = f"{len(others)} of {pluralise(len(tested), 'class', 'classes')}, first {min(others)}"
            warnings.warn(f"--test: {which}: left out, unknown to the model", stacklevel=2)
        learner = self.model.learner
        if None in self.names and not learner.learns_unlabelled(learner.config):
            raise ValueError(
                "--unlabelled: this model has no slow phase (learner.slow.rounds is 0 or not set); leave it out "
                "(`dualnet suggest` says which to label), or create a new model with --learner.preset trained"
            )

    def check_tasks(self) -> None:
        """Raises ValueError unless the task of every image is known."""
        spec, names = self.model.learner.spec, [*self.model.class_names, *self.new]
        mask = (spec.with_classes(len(self.new), self.task) if self.new else spec).class_mask
        numbers = torch.tensor([names.index(name) for name in self.images.files.classes])
        find_tasks(numbers, mask, self.task)
        if len(mask) > 1 and self.task is None and None in self.names:
            if len(mask) == spec.num_tasks:
                raise ValueError("--task: this model is task-aware; give the task of the unlabelled images")
            self.record["new_task"] = len(mask) - 1

    def hold_out(self) -> None:
        """Add the held-out images of the session to those that the model keeps."""
        self.images.spare(self.new)
        numbers = {name: number for number, name in enumerate([*self.model.class_names, *self.new])}
        held_out = self.images.held_out
        labels = {row: numbers[name] for row, name in enumerate(self.names) if name and held_out[row]}
        images = self.images.files.decoded[np.array([*labels], dtype=int)]
        self.model.held_out = self.model.held_out.with_images(images, labels.values())

    def remove_corrected(self) -> None:
        """Remove from the memory images that come again with another label: they are offered to it anew."""
        labels = defaultdict[bytes, set[str]](set)
        for digest, name in self.images.learned:
            if name is not None:
                labels[digest].add(name)
        known = self.model.class_names
        remove_stored(
            self.model.learner, lambda _, digest, number: digest in labels and known[number] not in labels[digest]
        )

    def run(self, out: Path, display: RunDisplay, save_every: int) -> None:
        """Learn from the last saved step to the end."""
        steps = len(self.images.batches)
        if self.record["step"] == 0 and steps > 1:
            self.save(out)  # a folder that cannot be written to is noticed at once
        learned = int((~self.images.held_out).sum())
        display.begin(str(out), steps, self.record["step"], pluralise(learned, "image"))
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
        self.finish()
        self.save(out)

    def learn(self, step: int) -> dict[str, float]:
        rows, repeated = self.images.batches[step], step >= len(self.images.batches) // self.options.epochs
        names = [self.names[row] for row in rows.tolist()]
        task = self.record.get("new_task", self.task) if names[0] is None else self.task
        images = torch.from_numpy(self.images.files.decoded[rows.numpy()])
        return self.model.learn(images, names, batch_size=len(names), task=task, repeated=repeated)

    def finish(self) -> None:
        learner = self.model.learner
        if learner.needs_boundaries(learner.config):
            learner.end_task()  # a session is a task
        remove_duplicates(learner)
        self.record["after"] = self.measure()
        counts = {"images": int((~self.images.held_out).sum()), "classes": len(self.model.class_names)}
        result = {"time": time.time(), **counts, **{key: self.record[key] for key in RESULTS}}
        self.model.sessions = [*self.model.sessions, result]

    def measure(self) -> dict[str, list[float]]:
        return measure(self.model, self.record["old"], self.images.test)

    def save(self, out: Path) -> None:
        check_weights(self.model.learner)
        write(out, self.model, session=self.record)


def start(source: Path | None, options: LearnOptions, out: Path, device: str, trust: bool) -> Session:
    """A new session, or the same one from its folder, stopped or finished. Raises ValueError if it holds another.

    The folder must be locked, so that no other process changes the model after it is loaded.
    """
    in_place = source is not None and same_folder(str(source), str(out))
    source_digest = None if in_place else digest_source(source, options)
    if ModelFolder(out).holds_model:  # not if killed before the first save
        named = saved_learner.code_paths(options.learner).values()  # by the command itself
        model, state = load_with_state(out, device, trust or named)
        session, record = Session(model, options), state.get("session") or {}
        if record.get("plan") == session.record["plan"] and (in_place or record.get("source") == source_digest):
            if "after" not in record and state["device"] != model.learner.class_mask.device.type:
                raise ValueError(
                    f"--device: this session was started on {state['device']}; continue there, or choose another --out"
                )
            session.record = record
            return session
        check_may_replace(out, state, in_place, f"dualnet learn {out} {options.train} --out {out}")
    else:
        model, state = (new_model(options, device), {}) if source is None else load_with_state(source, device, trust)
        session = Session(model, options)
        if state.get("unfinished"):
            warnings.warn(state["unfinished"], stacklevel=2)
    session.begin()
    session.record["source"] = source_digest
    return session


def check_may_replace(out: Path, state: dict[str, Any], in_place: bool, command: str) -> None:
    """Raises ValueError if another session must not begin in this folder."""
    if "serve" in state:
        raise ValueError(f"--out {out}: belongs to a service; use `dualnet teach`, or choose another --out")
    if state["unfinished"]:  # also in place: the images that it has not learned yet would be lost
        remedy = "repeat its command to finish it, or choose another --out"
        raise ValueError(f"--out {out}: holds an unfinished session with other images or options; {remedy}")
    if not in_place:
        remedy = f"to continue with it: {command}"
        raise ValueError(f"--out {out}: holds a model that learned with other images or options; {remedy}")


def normalise(name: str) -> str:
    """The name without differences that a file system or a reader may not see.

    >>> normalise("Café") == normalise("cafe\\u0301")
    True
    """
    return unicodedata.normalize("NFC", name).casefold().strip()
