"""A model on disk apart from any run: model.yaml says what it is, checkpoint/ holds all that its learner remembers."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dualnet import atomic
from dualnet.batch import StreamSpec
from dualnet.data.splits import class_mask
from dualnet.files import DAMAGES, because, read_yaml, reason
from dualnet.learners import LEARNERS, Learner, learner_name, make_learner
from dualnet.options import plain
from dualnet.runs import checkpoint
from dualnet.runs.experiment import parse_learner
from dualnet.runs.record import digest_of, updated
from dualnet.runs.run import learner_state, load_state
from dualnet.runs.run_folder import MODEL_FILE, RunFolder, environment
from dualnet.runs.run_log import is_whole
from dualnet.text import printable

WHAT_IT_IS = ("learner", "seed", "stream")  # in model.yaml: what saving it again must find there


def is_saved(folder: Path) -> bool:
    return (folder / MODEL_FILE).is_file()


def save(folder: Path, learner: Learner, class_names: Sequence[str]) -> None:
    """Into a new folder, or once more into that of the same model. The save before it stays, in case of damage."""
    content = described(learner, class_names)
    if is_saved(folder):
        check_same(folder, content)
    else:
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        make(folder)
        atomic.write(folder / MODEL_FILE, text)
    checkpoints = RunFolder(folder).checkpoints
    checkpoint.clean(checkpoints)
    number = max(checkpoint.steps(checkpoints), default=0) + 1
    state = {**learner_state(learner), "device": learner.class_mask.device.type}
    checkpoint.save(checkpoints, number, state, identity(content))


def load(folder: Path, device: str, trust: bool = False) -> tuple[Learner, tuple[str, ...]]:
    """The learner as it was saved, and the names of its classes."""
    file = folder / MODEL_FILE
    content = read_yaml(file)
    try:
        check_trusted(content["learner"]["name"], file, trust)
        name, config = parse_learner(updated({"learner": content["learner"]})["learner"])
        (spec, names), seed = stream_spec(content["stream"], file), content["seed"]
    except DAMAGES as error:
        raise ValueError(f"{because(file, error)}; if another version of dualnet made it, use that one") from error
    found = checkpoint.newest(RunFolder(folder).checkpoints, identity(content))
    if found is None:
        raise ValueError(f"{folder}: holds no checkpoint that can be read; save the model again")
    return restored(make_learner(name, spec, config, seed, device), found[1], folder), names


def identity(content: dict[str, Any]) -> dict[str, str]:
    """What a checkpoint of this model must state."""
    return {"model": digest_of({key: content.get(key) for key in WHAT_IT_IS})}


def check_trusted(learner: Any, file: Path, trust: bool) -> None:
    """Raises ValueError for a learner from outside this package: to load it is to run its code."""
    if not isinstance(learner, str):
        raise ValueError(f"{file}: learner.name is not a text")
    if not trust and learner not in LEARNERS and not learner.startswith("dualnet."):
        raise ValueError(
            f"{file}: learner.name is {printable(learner)}, code from outside of dualnet that would be imported and "
            "run; if you trust it, pass trust=True, or --trust to `dualnet predict`"
        )


def restored(learner: Learner, state: dict[str, Any], folder: Path) -> Learner:
    """The learner with the state of a checkpoint, which may come from another device."""
    try:
        if state["device"] != learner.class_mask.device.type:
            # A generator's state means nothing there: it begins anew.
            state["learner"]["_extra_state"] = learner.get_extra_state()
        load_state(learner, state)
    except DAMAGES as error:
        raise ValueError(f"{folder}: its checkpoint cannot be used ({reason(error)})") from error
    return learner


def described(learner: Learner, class_names: Sequence[str]) -> dict[str, Any]:
    spec = learner.spec
    return plain(
        {
            "learner": {"name": learner_name(learner), **dataclasses.asdict(learner.config)},
            "seed": learner.generator.initial_seed(),
            "stream": {
                "image_shape": [int(side) for side in spec.image_shape],  # NumPy's numbers and words are taken too
                "input_size": None if spec.input_size is None else int(spec.input_size),
                "class_names": [str(name) for name in class_names],
                "tasks": [row.nonzero().flatten().tolist() for row in spec.class_mask],
            },
            "environment": environment(learner.class_mask.device),
        }
    )


def make(folder: Path) -> None:
    """Raises ValueError for a folder that holds something: nothing of a run, or of yours, is written over."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if [path for path in folder.iterdir() if not path.name.startswith(MODEL_FILE)]:  # half a file may be left
            what = "a run" if RunFolder(folder).experiment_file.exists() else "other files"
            raise ValueError(f"{folder}: holds {what}; save the model to a folder of its own")
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise ValueError(f"{folder}: cannot be made ({error.strerror}); choose another folder") from error


def check_same(folder: Path, content: dict[str, Any]) -> None:
    there = read_yaml(folder / MODEL_FILE)
    for key in WHAT_IT_IS:
        if there.get(key) != content[key]:
            raise ValueError(f"{folder}: holds another model (its `{key}` differs); choose another folder")


def stream_spec(stream: dict[str, Any], file: Path) -> tuple[StreamSpec, tuple[str, ...]]:
    """What a learner was told of its stream, as it is written in a file, and the names of the classes."""
    try:
        names = tuple(str(name) for name in stream["class_names"])
        channels, height, width = (int(side) for side in stream["image_shape"])
        if not all(is_whole(number) and 0 <= number < len(names) for task in stream["tasks"] for number in task):
            raise ValueError(f"a class of tasks is not a whole number from 0 to {len(names) - 1}")
        mask = class_mask(stream["tasks"], len(names))
        return StreamSpec((channels, height, width), mask, stream["input_size"]), names
    except DAMAGES as error:
        raise ValueError(f"{file}: stream cannot be used ({reason(error)})") from error
