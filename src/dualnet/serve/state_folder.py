"""The files in the state folder: the model with the journal position up to which it has learned, and snapshots."""

import contextlib
import copy
import json
import shutil
import sqlite3
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from dualnet import atomic
from dualnet.data.class_folders import is_image
from dualnet.data.decode import MAX_SIZE
from dualnet.data.inputs import square_side
from dualnet.experiments import checkpoint
from dualnet.experiments.model_folder import ModelFolder
from dualnet.experiments.record import CHECKPOINTS, EXPERIMENT_FILE
from dualnet.files import READ_ERRORS, describe_error, read_json
from dualnet.machine import choose_device
from dualnet.models.held_out import HeldOut
from dualnet.models.model import NEW_MODEL, Model, load, load_with_state, write
from dualnet.options import merge, whole_number
from dualnet.serve.errors import RequestError
from dualnet.serve.journal import Journal
from dualnet.serve.options import DEFAULT_IMAGE_SIZE, Options

JOURNAL, MODEL, SNAPSHOTS, LOCK, LEARNER_LOCK = "journal.sqlite", "model", "snapshots", "lock", "learner.lock"
INFO_FILE, LAST_FILE, EXPORT = "snapshot.json", "last", "export-"
NEW_PROGRESS = {"position": 0, "steps": 0, "steps_since_taught": 0, "saves_due": 0}


def device_of(options: Options) -> str:
    return choose_device(options.device).type  # pyright: ignore[reportArgumentType]


def open_model(options: Options, journal: Journal) -> tuple[Model, dict[str, Any]]:
    """The saved model and its progress: journal position and background steps. Creates the model if there is none.

    The names of its classes are their numbers in the journal.
    """
    if has_model(options) or journal.last_position() > 0:
        model, state = load_saved(options, journal)
        check_model(model, options)
        checkpoint.remove_later(options.state / MODEL / CHECKPOINTS, state["step"])
        return model, state["serve"]
    model = new_model(options)
    model.class_names = tuple(map(str, journal.adopt(model.class_names)))
    save(model, options, NEW_PROGRESS)
    return model, dict(NEW_PROGRESS)


def new_model(options: Options) -> Model:
    """A copy of that given by `--model`, or one that has learned nothing."""
    if options.model is None:
        size = DEFAULT_IMAGE_SIZE if options.image_size is None else options.image_size
        size = whole_number(size, "--image-size", 1, MAX_SIZE)
        new = {"image_size": size, "seed": options.seed, "boundaries": options.has_background}
        model = Model.create(learner=learner_of(options), device=device_of(options), **new)
    else:
        model = load(options.model, device_of(options))
        model.held_out = HeldOut()  # the service holds out examples of its own
    check_model(model, options)
    return model


class UnusableError(ValueError):
    """The model is missing or damaged, or does not fit the journal."""

    def __init__(self, options: Options, reason: str) -> None:
        super().__init__(f"--state {options.state}: {reason}; {remedies(options)}")
        self.reason = reason


def load_saved(options: Options, journal: Journal) -> tuple[Model, dict[str, Any]]:
    """The model and the content of its checkpoint. Raises UnusableError."""
    try:
        model, state = load_with_state(options.state / MODEL, device_of(options), trust=False)
        position = state["serve"]["position"]
    except (ValueError, KeyError) as error:
        reason = describe_error(error).partition(";")[0]  # without the remedies of other commands
        raise UnusableError(options, f"its model is missing or damaged ({reason})") from error
    if misfit := describe_misfit(set(model.class_names), position, journal):
        raise UnusableError(options, misfit)
    return model, state


def describe_misfit(names: set[str], position: int, journal: Journal) -> str:
    """Why the changes in the journal after a position do not continue a model of these classes; empty if they do."""
    last, first, current = journal.last_position(), journal.first_position(), set(map(str, journal.classes()))
    if not first <= position <= last:
        has = f"has {first + 1} to {last}" if last else "is empty"
        return f"its model has learned changes 1 to {position}, but {JOURNAL} {has}"
    if position < last != journal.newest_entry():
        return f"its model has learned changes 1 to {position}, but {JOURNAL} has lost {last}"
    added, removed = (set(map(str, journal.classes_of(kind, position))) for kind in ("class", "remove"))
    if not names <= current | removed or not current <= names | added:
        return f"its model has {len(names)} classes, but {JOURNAL} has {len(current)} others"
    return ""


def remedies(options: Options) -> str:
    """What a user can do with a state folder that is damaged."""
    alone = f"start from the model alone: --model {options.state / MODEL} --state ANOTHER"
    return f"put back what is lost, or {alone}" + ("" if options.repair else ", or --repair")


def learner_of(options: Options) -> dict[str, Any]:
    """The options of the learner of a new model."""
    is_default = options.learner.get("name", NEW_MODEL["name"]) == NEW_MODEL["name"]
    return merge(NEW_MODEL, options.learner) if is_default else dict(options.learner)


def has_model(options: Options) -> bool:
    return ModelFolder(options.state / MODEL).holds_model


def check_place(options: Options) -> None:
    """Raises ValueError if the state folder is a run or a saved model, or has images: the user may want to use them."""
    state = options.state
    if (state / JOURNAL).exists():
        return
    if (state / EXPERIMENT_FILE).exists() or (state / CHECKPOINTS).exists():
        raise ValueError(f"--state {state}: is a run or a model; to start from it: --model {state} --state ANOTHER")
    if any(is_image(path.name) for pattern in ("*", "*/*") for path in state.glob(pattern)):
        raise ValueError(f"--state {state}: holds images; give another folder, then send them: dualnet teach {state}")


def warn_of_unused_model(options: Options) -> None:
    """Only a warning: a supervisor repeats the first command to continue."""
    given = f"--model {options.model}" if options.model is not None else "--learner" if options.learner else ""
    if given and has_model(options):
        unused = f"{given}: not used, since --state {options.state} has a model"
        warnings.warn(f"{unused}, which continues; for a new one give another --state", stacklevel=2)


def check_model(model: Model, options: Options) -> None:
    """Raises ValueError if the service cannot use the model, or `--image-size` is given and the model has another."""
    spec, size = model.learner.spec, options.image_size
    side = square_side(spec.image_shape)
    if size not in (None, side):
        raise ValueError(f"--image-size {size}: the model has images of {side} pixels; omit --image-size")
    if spec.num_tasks > 1:
        raise ValueError(f"--model {options.model}: it was trained with {spec.num_tasks} tasks; give a task-free model")
    if model.learner.memory_head is not None:
        answer = model.learner.config.answer
        raise ValueError(f"learner.answer: {answer} would be computed anew after every example here; use heads")
    if model.learner.closed_form is not None and not model.keeps_examples:
        raise ValueError("learner.head: here a closed-form head needs a frozen encoder; give --learner.encoder.lr 0")


def save(model: Model, options: Options, progress: dict[str, Any]) -> None:
    write(options.state / MODEL, model, checkpoint.KEPT, serve=progress)


def export(model: Model, folder: Path, names: Mapping[int, str]) -> None:
    """Save a copy of the model with the names of its classes."""
    exported = copy.copy(model)
    # A class that is not in the journal has just been removed there, which the learner has not read yet.
    exported.class_names = tuple(names.get(int(number), f"removed class {number}") for number in model.class_names)
    exported.save(folder)


def create_snapshot(model: Model, options: Options, title: str) -> dict[str, Any]:
    folder = options.state / SNAPSHOTS
    if len(list_snapshots(options)) >= options.most_snapshots:
        raise ValueError(f"the limit of {options.most_snapshots} snapshots is reached (--most-snapshots); delete one")
    number = 1 + last_snapshot(options)
    atomic.write(folder / LAST_FILE, str(number))
    info = {"number": number, "title": title, "time": time.time(), "classes": [*map(int, model.class_names)]}
    unfinished = folder / f"{number}{atomic.TEMPORARY}"
    try:
        model.save(unfinished)
        atomic.write(unfinished / INFO_FILE, json.dumps(info))
        unfinished.rename(folder / str(number))
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # on a full disk it would occupy space
    atomic.flush(folder)
    return info


def last_snapshot(options: Options) -> int:
    """The largest number that a snapshot has had; 0: none. Those of deleted ones are not used again."""
    numbers = [int(folder.name) for folder in snapshot_folders(options)]
    with contextlib.suppress(FileNotFoundError, ValueError):
        numbers.append(int((options.state / SNAPSHOTS / LAST_FILE).read_text()))
    return max(numbers, default=0)


def list_snapshots(options: Options) -> list[dict[str, Any]]:
    """Number, title, time and classes of each snapshot, oldest first."""
    return sorted(map(describe_snapshot, snapshot_folders(options)), key=lambda info: info["number"])


def snapshot_folders(options: Options) -> list[Path]:
    return [folder for folder in (options.state / SNAPSHOTS).glob("*") if folder.name.isdecimal()]


def describe_snapshot(folder: Path) -> dict[str, Any]:
    """What its file says; a snapshot can be restored without it."""
    info: dict[str, Any] = {"number": int(folder.name), "title": "", "time": 0.0, "classes": []}
    with contextlib.suppress(*READ_ERRORS):
        stated = read_json(folder / INFO_FILE)
        classes = [int(number) for number in stated["classes"]]
        info |= {"title": str(stated["title"]), "time": float(stated["time"]), "classes": classes}
    return info


def snapshot_folder(options: Options, number: int) -> Path:
    return options.state / SNAPSHOTS / str(number)


def load_snapshot(options: Options, number: int, journal: Journal, current: Model | None = None) -> Model:
    """The model, with the current classes of the journal. Raises ValueError if the snapshot cannot be read.

    Also if it is not of the same kind as the current model, as in a folder that was put together from two.
    """
    try:
        model = load(snapshot_folder(options, number), device_of(options))
    except (ValueError, OSError) as error:
        reason = describe_error(error).partition(";")[0]
        raise ValueError(f"snapshot {number} cannot be read ({reason}); delete it") from error
    if current is not None and kind_of(model) != kind_of(current):
        raise ValueError(f"snapshot {number} is of a model with other options; delete it")
    return with_classes(model, journal)


def kind_of(model: Model) -> tuple[Any, ...]:
    """What models have in common of which one can replace another."""
    return type(model.learner), model.learner.config, model.learner.spec.image_shape


def with_classes(model: Model, journal: Journal) -> Model:
    """The model with the current classes of the journal, and no others."""
    current = [*map(str, journal.classes())]
    for name in [name for name in model.class_names if name not in current]:
        model.remove_class(name)
    if new := [name for name in current if name not in model.class_names]:
        model.add_classes(new)
    return model


def delete_snapshot(options: Options, number: int) -> None:
    folder = snapshot_folder(options, number)
    deleted = folder.with_name(f"{number}-{uuid4().hex}{atomic.TEMPORARY}")
    try:
        folder.rename(deleted)
    except FileNotFoundError:
        raise RequestError(404, f"snapshot {number} does not exist") from None
    shutil.rmtree(deleted, ignore_errors=True)


def failure(error: Exception, options: Options) -> ValueError | OSError:
    """A user error, or an error of the disk with file and reason, as one line that can be sent between processes."""
    match error:
        case ValueError():
            return ValueError(str(error))
        case OSError():
            return OSError(f"{error.filename or options.state}: {error.strerror or error}")
        case sqlite3.OperationalError():
            return OSError(f"{options.state / JOURNAL}: {error}")
    return ValueError(f"{options.state / JOURNAL}: damaged ({error}); {remedies(options)}")


def remove_unfinished(options: Options) -> None:
    """Remove exports and snapshots that an earlier process did not complete."""
    for folder in (*options.state.glob(f"{EXPORT}*"), *(options.state / SNAPSHOTS).glob(f"*{atomic.TEMPORARY}")):
        shutil.rmtree(folder, ignore_errors=True)
