"""The folder of a saved model: model.yaml has the options of its learner, checkpoint/ its classes and its state."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from dualnet import atomic
from dualnet.batch import StreamSpec
from dualnet.data.splits import class_mask
from dualnet.experiments import checkpoint
from dualnet.experiments.experiment import parse_learner
from dualnet.experiments.record import MODEL_FILE, digest_of
from dualnet.experiments.run_folder import LOCK_FILE, RunFolder, environment
from dualnet.files import READ_ERRORS, describe_error, read_yaml
from dualnet.learners import Learner, learner_name
from dualnet.options import flat, plain, whole_number
from dualnet.text import escape

IDENTITY_KEYS = ("learner", "seed")


def write(path: Path, learner: Learner, state: Mapping[str, Any]) -> None:
    """Save a model to a new folder, or again to its own, where the previous checkpoint is kept."""
    file, checkpoints = path / MODEL_FILE, RunFolder(path).checkpoints
    content = {
        "learner": {"name": learner_name(learner), **plain(dataclasses.asdict(learner.config))},
        "seed": learner.generator.initial_seed(),
        "environment": environment(learner.class_mask.device),
    }
    if file.is_file():
        stored = read_yaml(file)
        check_same(path, stored, content)
        content = stored
    else:
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        check_free(path)
        atomic.make_folder(path, "choose another folder")
        atomic.write(file, text)
    checkpoint.clean(checkpoints)
    number = max(checkpoint.steps(checkpoints), default=0) + 1
    checkpoint.write(checkpoints, number, checkpoint.snapshot(state), identity(content))


def check_same(path: Path, stored: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Raises ValueError if the folder holds another model."""
    try:
        same_learner = parse_learner(stored["learner"]) == parse_learner(content["learner"])
    except READ_ERRORS:
        same_learner = False
    same = {"learner": same_learner, "seed": stored.get("seed") == content["seed"]}
    if different := [key for key in same if not same[key]]:
        raise ValueError(f"{path}: holds another model (its `{different[0]}` differs); choose another folder")


def check_free(folder: Path) -> None:
    """Raises ValueError if the path is not a folder, or holds other files: nothing of the user is overwritten."""
    ours = (MODEL_FILE, LOCK_FILE)  # also as a temporary file
    try:
        others = [path for path in folder.iterdir() if not path.name.startswith(ours)] if folder.exists() else []
    except (NotADirectoryError, PermissionError) as error:
        raise ValueError(f"{folder}: cannot be used ({error.strerror}); choose another folder") from error
    if others:
        what = "a run" if RunFolder(folder).started else "other files"
        raise ValueError(f"{folder}: holds {what}; save the model to a folder of its own")


def identity(content: Mapping[str, Any]) -> dict[str, str]:
    """What the checkpoints of this model state in their field `run`."""
    return {"model": digest_of({key: content[key] for key in IDENTITY_KEYS})}


def code_paths(learner: Any) -> dict[str, str]:
    """The options of a learner that are import paths. A name without a dot is never imported."""
    options = flat(learner) if isinstance(learner, Mapping) else {}
    values = {option: options.get(option) for option in ("name", "encoder.name", "slow.objective", "memory.policy")}
    return {option: path for option, path in values.items() if isinstance(path, str) and "." in path}


def check_trusted(learner: Any, file: Path, trust: bool | Collection[str]) -> None:
    """Raises ValueError if the options of a learner name code from outside this package: loading it runs that code.

    `trust` is True for any code, or the import paths that are trusted.
    """
    for option, path in code_paths(learner).items():
        is_ours = option == "name" and path.startswith("dualnet.")
        if not (is_ours or trust is True or (trust and path in trust)):
            raise ValueError(
                f"{file}: learner.{option} is {escape(path)}, code from outside of dualnet that would be imported "
                "and run; if you trust it, give --trust, in Python trust=True (`dualnet serve` does not load it)"
            )


def stream_spec(stream: Any) -> tuple[StreamSpec, tuple[str, ...]]:
    """The spec and the class names from the section `stream` of a file."""
    try:
        names = tuple(str(name) for name in stream["class_names"])
        channels, height, width = (int(side) for side in stream["image_shape"])
        tasks = [[whole_number(number, "tasks", 0, len(names) - 1) for number in task] for task in stream["tasks"]]
        mask = class_mask(tasks, len(names))
        return StreamSpec((channels, height, width), mask, stream["input_size"]), names
    except READ_ERRORS as error:
        raise ValueError(f"stream: {describe_error(error)}") from error
