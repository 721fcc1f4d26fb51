"""A run folder read from disk, once, for the report, searches, tables, resuming and models.

Nothing here imports PyTorch or a learner: a report of many folders is quick, and runs nothing that a folder names.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dualnet.files import DAMAGES, because, read_json, read_yaml
from dualnet.metrics import Matrix, accuracy_matrix, summary
from dualnet.options import flat, is_whole
from dualnet.runs.class_results import CLASSES_FILE, ClassResults, read_class_results
from dualnet.runs.run_log import Log, read_log

EXPERIMENT_FILE, RESULT_FILE, LOG_FILE = "experiment.yaml", "result.json", "log.jsonl"
WRITTEN_BESIDE = ("stream", "manifest", "environment")  # in experiment.yaml, beside the options
HOW_OFTEN = ("log_every", "checkpoint_every")
ROOTS = ("benchmark.root", "benchmark.test_root")  # folders of images
NO_RESULT = ("benchmark.cache", "benchmark.on_error")  # which images are learned is in the manifest
FREE_TO_CHANGE = (*HOW_OFTEN, *ROOTS, *NO_RESULT)  # options that decide no result: a resumed run may have others
IMAGES = "benchmark.images"  # not an option, but told apart like one: folders of the same name may hold other images
NOT_COMPARED = ("seed", "stability_every", *HOW_OFTEN, *NO_RESULT)  # of two runs of one experiment

# For folders of older versions: the values of options before these existed. Those of a learner by its name.
LABELS: dict[str, Any] = {"share": 1.0, "drawn_per": "sample", "delay": 0, "delay_spread": 0}
TRAINING: dict[str, Any] = {"augment": "none", "ema_rate": 0.0, "crop_area": [0.4, 1.0]}
REPLAY = TRAINING | {"joint_statistics": False, "augment_replay": "same", "unlabelled": "skip"}
ADDED_LATER: dict[str, dict[str, Any]] = {
    "dualnet": REPLAY | {"slow_optimizer": "look_ahead"},
    **dict.fromkeys(("er", "derpp", "mir", "ctn"), REPLAY),
    **dict.fromkeys(("finetune", "offline"), TRAINING),
}
# Options that came after checkpoints had digests: with this value a folder means the same as one that lacks them.
LEFT_OUT: dict[str, Any] = {
    **dict.fromkeys(f"learner.{option}" for option in ("memory.slots", "start", "encoder", "weights", "encoder_lr")),
    "learner.encoder_options": {},
    "learner.replay_weight": 1.0,
    "benchmark.validation_classes_per_task": 5,
}
RENAMED = {"dualnet": {"fast_lr": "lr"}}  # options of a learner: the name before, and now
REMOVED = {"logit_adjustment": 0.0}  # options of learners that are gone: with this value they did nothing


@dataclass(frozen=True)
class RunRecord:
    """One seed of one experiment. accuracy is None until it is finished."""

    folder: Path
    name: str
    seed: str
    experiment: dict[str, Any]  # nested options, as this version names them
    digest: str  # of the options that decide a result
    options: dict[str, str]  # those that runs of one experiment share: dotted name -> text, and IMAGES
    stream: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    accuracy: Matrix | None = None  # percent, [tasks, tasks]
    metrics: dict[str, float | None] = field(default_factory=dict)
    steps: int | None = None
    seconds: float | None = None
    peak_memory: float | None = None  # bytes
    forward_samples: float | None = None  # images through the encoders while learning
    backward_samples: float | None = None

    @cached_property
    def log(self) -> Log:
        return read_log(self.folder / LOG_FILE)

    @cached_property
    def classes(self) -> ClassResults | None:
        """What it answered at the end; None while it is not finished, and in a folder of an older version."""
        names = self.stream.get("class_names")
        if self.accuracy is None or not isinstance(names, list):
            return None
        return read_class_results(self.folder / CLASSES_FILE, len(names))

    @property
    def last_step(self) -> int | None:
        return self.log.last_step if self.steps is None else self.steps

    @property
    def validation(self) -> bool:
        """Whether it is a run of a search, on validation tasks."""
        return bool(self.stream.get("validation"))

    @property
    def pixels(self) -> str:
        """Digest of some images; empty in a folder of an older version."""
        return str(self.stream.get("pixels", ""))


def read_record(folder: Path) -> RunRecord:
    """The run in a folder, finished or not. Raises ValueError, one line with the file, if it cannot be used."""
    file = folder / EXPERIMENT_FILE
    result = read_result(folder / RESULT_FILE)
    try:
        content = read_yaml(file)
        beside = {key: mapping_in(content, key) for key in WRITTEN_BESIDE}
        experiment = updated({key: value for key, value in content.items() if key not in WRITTEN_BESIDE})
        if not isinstance(experiment["name"], str) or not is_whole(experiment["seed"]):
            raise ValueError("name or seed has the wrong type")
        return RunRecord(
            folder=folder,
            name=experiment["name"],
            seed=str(experiment["seed"]),
            experiment=experiment,
            digest=digest_of({key: value for key, value in compact(experiment).items() if key not in FREE_TO_CHANGE}),
            options=compared_options(experiment) | images_of(beside["manifest"]),
            **{**beside, "environment": texts(beside["environment"])},
            **result,
        )
    except DAMAGES as error:
        raise ValueError(f"{because(file, error)}; remove the folder or run it again") from error


def read_result(file: Path) -> dict[str, Any]:
    """The fields of a record that result.json holds; empty while there is none. Raises ValueError if it is damaged."""
    if not file.exists():
        return {}
    try:
        result = read_json(file)
        accuracy, cost = accuracy_matrix(result["accuracy"]), mapping_in(result, "cost")
        measured = {name: None if math.isnan(value) else value for name, value in summary(accuracy).items()}
        return {
            "accuracy": accuracy,
            "metrics": measured | {name: number(value) for name, value in mapping_in(result, "metrics").items()},
            "steps": result["steps"] if is_whole(result.get("steps")) else None,
            "seconds": number(result.get("seconds")),
            "peak_memory": number(result.get("peak_memory_bytes")),
            **{key: number(cost.get(key)) for key in ("forward_samples", "backward_samples")},
        }
    except DAMAGES as error:
        raise ValueError(f"{because(file, error)}; remove it and run again") from error


def updated(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an older version as this one has them. Nothing else is checked.

    >>> updated({"learner": {"name": "own.Learner", "fast_lr": 0.1, "logit_adjustment": 0.0}})["learner"]
    {'name': 'own.Learner', 'fast_lr': 0.1}
    >>> updated({"learner": {"name": "dualnet", "fast_lr": 0.1}})["learner"]["lr"]
    0.1
    """
    labels, learner = LABELS | mapping_in(options, "labels"), mapping_in(options, "learner")
    name = str(learner.get("name"))
    names = RENAMED.get(name, {})
    kept = {key: value for key, value in learner.items() if key not in REMOVED or REMOVED[key] != value}
    renamed = {names.get(key, key): value for key, value in kept.items()}
    return {**options, "labels": labels, "learner": {**renamed, **ADDED_LATER.get(name, {}), **renamed}}


def compared_options(experiment: Mapping[str, Any]) -> dict[str, str]:
    return {key: value for key, value in texts(compact(experiment)).items() if key not in NOT_COMPARED}


def compact(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their dotted names, as a folder of an older version has them."""
    return {key: value for key, value in flat(experiment).items() if key not in LEFT_OUT or LEFT_OUT[key] != value}


def images_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """As one more option, which images were learned and tested."""
    digests = [str(manifest[key]) for key in ("class_order", "split") if manifest.get(key)]
    return {IMAGES: "-".join(digests)} if digests else {}


def with_one_root(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Images that have moved are the same ones: their runs get the folder of the first."""
    first: dict[object, dict[str, str]] = {}
    known = []
    for record in records:
        if record.pixels:
            roots = {root: record.options[root] for root in ROOTS if root in record.options}
            same = first.setdefault((record.options.get(IMAGES), record.pixels), roots)
            record = replace(record, options=record.options | same)
        known.append(record)
    return known


def digest_of(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def mapping_in(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A section, empty if there is none."""
    value = content.get(key)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{key} is not a mapping")
    return value or {}


def number(value: Any) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{str(value)[:20]!r} is not a number")
    return value


def texts(mapping: Mapping[str, Any]) -> dict[str, str]:
    """Nested options by their dotted names, as texts.

    >>> texts({"learner": {"name": "er", "betas": [1, 2], "head": None}})
    {'learner.name': 'er', 'learner.betas': '[1, 2]', 'learner.head': 'null'}
    """
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in flat(mapping).items()}
