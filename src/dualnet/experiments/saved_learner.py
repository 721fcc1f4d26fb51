"""A learner in a checkpoint: what it is made from, and its state. Of options that name code, what may be imported."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from dualnet.batch import StreamSpec
from dualnet.data.splits import class_mask
from dualnet.experiments.experiment import parse_learner
from dualnet.files import READ_ERRORS, describe_error
from dualnet.learners import Learner, learner_name, make_learner
from dualnet.nets.timm_encoder import PREFIX
from dualnet.options import flatten, to_plain, whole_number
from dualnet.text import escape

CODE_OPTIONS = ("name", "encoder.name", "slow.objective", "memory.policy")  # those that may be import paths


def describe(learner: Learner, class_names: Sequence[str]) -> dict[str, Any]:
    """What a learner is made from, as plain values; `make` is the inverse."""
    return {
        "options": {"name": learner_name(learner), **to_plain(dataclasses.asdict(learner.config))},
        "seed": learner.generator.initial_seed(),
        "stream": describe_stream(learner.spec, class_names),
    }


def state_of(learner: Learner) -> dict[str, Any]:
    """Weights, memory, generator and optimizers; `load_state` is the inverse."""
    optimizers = {name: optimizer.state_dict() for name, optimizer in learner.optimizers().items()}
    device = learner.class_mask.device.type
    return {"device": device, "learner": learner.state_dict(), "optimizers": optimizers}


def make(content: Mapping[str, Any], device: str) -> tuple[Learner, tuple[str, ...]]:
    """The learner of a checkpoint and its class names. Imports the code that its options name: see `check_trusted`."""
    learner, class_names = make_empty(content, device)
    load_state(learner, content)
    return learner, class_names


def make_empty(content: Mapping[str, Any], device: str) -> tuple[Learner, tuple[str, ...]]:
    """The same without its state."""
    name, config = parse_learner(content["options"])
    spec, class_names = read_stream(content["stream"])
    try:
        return make_learner(name, spec, config, content["seed"], device, fresh=False), class_names
    except RuntimeError as error:  # it is too large
        raise ValueError(f"its learner cannot be made ({describe_error(error)})") from error


def load_state(learner: Learner, content: Mapping[str, Any]) -> None:
    """Load the state of a checkpoint into a learner that was made alike.

    The state of a generator has no meaning on another kind of device: there the learner keeps its own.
    """
    try:
        other_device = content["device"] != learner.class_mask.device.type
        generator = {"_extra_state": learner.get_extra_state()} if other_device else {}
        learner.load_state_dict({**content["learner"], **generator})
        for name, optimizer in learner.optimizers().items():
            optimizer.load_state_dict(content["optimizers"][name])
        if learner.ema is not None:
            learner.ema.check_fits(learner)
    except (*READ_ERRORS, RuntimeError) as error:
        raise ValueError(
            f"the checkpoint does not match the learner; has its code changed? ({describe_error(error)})"
        ) from error


def describe_stream(spec: StreamSpec, class_names: Sequence[str]) -> dict[str, Any]:
    """The stream in plain values; NumPy's numbers and strings are converted."""
    return {
        "image_shape": [int(side) for side in spec.image_shape],
        "input_size": None if spec.input_size is None else int(spec.input_size),
        "class_names": [str(name) for name in class_names],
        "tasks": [row.nonzero().flatten().tolist() for row in spec.class_mask],
    }


def read_stream(stream: Any) -> tuple[StreamSpec, tuple[str, ...]]:
    """The inverse of `describe_stream`."""
    try:
        names = tuple(str(name) for name in stream["class_names"])
        channels, height, width = (int(side) for side in stream["image_shape"])
        tasks = [[whole_number(number, "tasks", 0, len(names) - 1) for number in task] for task in stream["tasks"]]
        return StreamSpec((channels, height, width), class_mask(tasks, len(names)), stream["input_size"]), names
    except READ_ERRORS as error:
        raise ValueError(f"stream: {describe_error(error)}") from error


def code_paths(options: Any) -> dict[str, str]:
    """The options of a learner that are import paths. A name without a dot, or of a timm model, is never imported."""
    values = flatten(options) if isinstance(options, Mapping) else {}
    names = {key: values[key] for key in CODE_OPTIONS if isinstance(values.get(key), str)}
    return {key: name for key, name in names.items() if "." in name and not name.startswith(PREFIX)}


def check_trusted(options: Any, folder: Path | str, trust: bool | Collection[str]) -> None:
    """Raises ValueError if the options of a learner name code from outside this package: loading it runs that code.

    `trust` is True for any code, or the import paths that are trusted.
    """
    for key, path in code_paths(options).items():
        is_ours = key == "name" and path.startswith("dualnet.")
        if not (is_ours or trust is True or (trust and path in trust)):
            raise ValueError(
                f"{folder}: learner.{key} is {escape(path)}, code from outside of dualnet that would be imported "
                "and run; if you trust it, give --trust, in Python trust=True (`dualnet serve` does not load it)"
            )
