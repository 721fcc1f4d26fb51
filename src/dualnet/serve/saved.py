"""What the learner's process keeps on disk: the model with the journal position that it contains, and snapshots."""

import contextlib
import json
import shutil
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from dualnet import atomic
from dualnet.data.decode import MAX_SIZE
from dualnet.engine import choose_device
from dualnet.options import whole_number
from dualnet.runs import checkpoint, model_folder
from dualnet.runs.model import Model, load, load_with_state
from dualnet.runs.run_folder import RunFolder
from dualnet.serve.errors import MissingError
from dualnet.serve.options import Options

JOURNAL, MODEL, SNAPSHOTS, LOCK, LEARNER_LOCK = "journal.sqlite", "model", "snapshots", "lock", "learner.lock"
INFO_FILE, LAST_FILE, EXPORT = "snapshot.json", "last", "export-"
LEARNER: dict[str, Any] = {"name": "dualnet", "preset": "live", "memory": {"slots": 1000}}


def open_model(options: Options) -> tuple[Model, dict[str, Any]]:
    """The model of the state folder, or a first one; and what was noted with it."""
    folder, device = options.state / MODEL, choose_device(options.device).type  # pyright: ignore[reportArgumentType]
    if checkpoint.steps(RunFolder(folder).checkpoints):
        model, state = load_with_state(folder, device, trust=False)
        return model, state["serve"]
    if options.model is None:
        size = whole_number(options.image_size, "--image-size", 1, MAX_SIZE)
        new = {"image_size": size, "seed": options.seed, "boundaries": options.has_background}
        model = Model.create(learner=LEARNER, device=device, **new)
    else:
        model = load(options.model, device)
    check(model, options)
    notes = {"position": 0, "steps": 0}
    save(model, folder, notes)
    return model, notes


def check(model: Model, options: Options) -> None:
    """Raises ValueError for a model that cannot be taught here."""
    spec = model.learner.spec
    channels, height, width = spec.image_shape
    if spec.num_tasks > 1:
        raise ValueError(f"--model {options.model}: it learned {spec.num_tasks} tasks; give one that learned task-free")
    if channels != 3 or height != width:
        raise ValueError(
            f"--model {options.model}: its images are {list(spec.image_shape)}; give one of colour squares"
        )


def save(model: Model, folder: Path, notes: dict[str, Any]) -> None:
    model_folder.write(folder, model.learner, model.class_names, {**model.state(), "serve": notes})


def make_snapshot(model: Model, options: Options, title: str, notes: dict[str, Any]) -> dict[str, Any]:
    folder = options.state / SNAPSHOTS
    there = [one["number"] for one in snapshots(options)]
    if len(there) >= options.most_snapshots:
        raise ValueError(f"there are {len(there)} snapshots, which is the limit (--most-snapshots); delete one")
    last = folder / LAST_FILE  # a number that was deleted is not used again
    number = max([*there, int(last.read_text()) if last.exists() else 0]) + 1
    atomic.write(last, str(number))
    info = {"number": number, "title": title, "time": time.time(), "classes": list(model.class_names)}
    unfinished = folder / f"{number}{atomic.TEMPORARY}"
    shutil.rmtree(unfinished, ignore_errors=True)
    save(model, unfinished, notes)
    atomic.write(unfinished / INFO_FILE, json.dumps(info))
    unfinished.rename(folder / str(number))
    atomic.flush(folder)
    return info


def snapshots(options: Options) -> list[dict[str, Any]]:
    """What is told of each, oldest first."""
    found = []
    for file in (options.state / SNAPSHOTS).glob(f"*/{INFO_FILE}"):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            found += [] if file.parent.name.endswith(atomic.TEMPORARY) else [json.loads(file.read_text())]
    return sorted(found, key=lambda info: info["number"])


def snapshot_folder(options: Options, number: int) -> Path:
    return options.state / SNAPSHOTS / str(number)


def delete_snapshot(options: Options, number: int) -> None:
    folder = snapshot_folder(options, number)
    unwanted = folder.with_name(f"{number}-{uuid4().hex}{atomic.TEMPORARY}")
    try:
        folder.rename(unwanted)
    except FileNotFoundError:
        raise MissingError(f"snapshot {number}") from None
    shutil.rmtree(unwanted, ignore_errors=True)


def clean(options: Options) -> None:
    """Remove what was left unfinished."""
    for left in (*options.state.glob(f"{EXPORT}*"), *(options.state / SNAPSHOTS).glob(f"*{atomic.TEMPORARY}")):
        shutil.rmtree(left, ignore_errors=True)
