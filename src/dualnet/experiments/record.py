"""Reading of run folders, for reports, searches, tables, resuming and models.

Nothing here imports PyTorch or a learner: reading many folders is fast, and no code that a folder names is run.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dualnet.experiments.final_predictions import CLASSES_FILE, FinalPredictions, read_final_predictions
from dualnet.experiments.run_log import Log, read_log
from dualnet.files import READ_ERRORS, describe_file_error, read_json, read_yaml
from dualnet.metrics import METRICS, Matrix, accuracy_matrix
from dualnet.options import BY_SEED, flatten, is_whole

EXPERIMENT_FILE, RESULT_FILE, LOG_FILE = "experiment.yaml", "result.json", "log.jsonl"
CHECKPOINTS = "checkpoint"  # the folder of the checkpoints
EARLIER = "earlier"  # in the folder of a table's row: its replaced runs, as earlier/NAME/seed-S
METADATA = ("stream", "manifest", "environment")  # sections of experiment.yaml that are not options
ROOTS = ("benchmark.root", "benchmark.test_root")  # folders of images
# The manifest has the images that were used, so `on_error` and the cache do not matter.
UNCOMPARED_OPTIONS = ("log_every", "checkpoint_every", "benchmark.cache", "benchmark.on_error")
RESULT_NEUTRAL_OPTIONS = (*UNCOMPARED_OPTIONS, *ROOTS)  # options without effect on results: they may change on resuming
IMAGES = "benchmark.images"  # a digest, compared like an option: folders of the same name may hold other images


Scalar = str | float | int | bool | None


@dataclass(frozen=True)
class RunRecord:
    """One seed of one experiment. The fields from `accuracy` on are None or empty until it is finished."""

    folder: Path
    name: str
    seed: str
    experiment: dict[str, Any]  # nested options
    digest: str  # of the options that affect results
    options: dict[str, Scalar]  # those that runs of one experiment share, by dotted name; and IMAGES
    stream: dict[str, Any]
    manifest: dict[str, Any]
    environment: dict[str, str]
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
    def classes(self) -> FinalPredictions | None:
        """Results by class; None while the run is not finished, or without the file, as in results/."""
        names = self.stream.get("class_names")
        if self.accuracy is None or not isinstance(names, list):
            return None
        return read_final_predictions(self.folder / CLASSES_FILE, len(names))

    @property
    def last_step(self) -> int | None:
        return self.log.last_step if self.steps is None else self.steps

    @property
    def validation(self) -> bool:
        """Whether it ran on validation tasks, as the runs of a search do."""
        return bool(self.stream.get("validation"))

    @property
    def has_order_by_seed(self) -> bool:
        """Whether runs of its experiment with other seeds have another class order."""
        return self.options.get("benchmark.order_seed") == BY_SEED

    @property
    def pixels(self) -> str:
        """Digest of some images; empty if it was not taken."""
        return str(self.stream.get("pixels", ""))


def describe_missing(folder: Path) -> str:
    """The message for a folder without a model. It names one directly below, if there is any."""
    if (folder / EXPERIMENT_FILE).exists():
        return f"{folder}: this run has no checkpoint that can be read; remove its result.json and run it again"
    below = min((path.parent for path in folder.glob(f"*/{CHECKPOINTS}")), default="runs/NAME/seed-0 or models/mine")
    what = "holds no checkpoint that can be read" if folder.exists() else "does not exist"
    return f"{folder}: {what}; give the folder of a run or of a saved model, such as {below}"


def read_record(folder: Path) -> RunRecord:
    """The run in a folder, finished or not. Raises ValueError, one line with the file, if it cannot be used."""
    file = folder / EXPERIMENT_FILE
    result = read_result(folder / RESULT_FILE)
    try:
        content = read_yaml(file)
        metadata = {key: mapping_in(content, key) for key in METADATA}
        experiment = {key: value for key, value in content.items() if key not in METADATA}
        if not isinstance(experiment["name"], str) or not is_whole(experiment["seed"]):
            raise ValueError("name or seed has the wrong type")
        return RunRecord(
            folder=folder,
            name=experiment["name"],
            seed=str(experiment["seed"]),
            experiment=experiment,
            digest=digest_of(
                {key: value for key, value in flatten(experiment).items() if key not in RESULT_NEUTRAL_OPTIONS}
            ),
            options=compared_options(experiment) | images_option(metadata["manifest"]),
            **{**metadata, "environment": {key: str(value) for key, value in flatten(metadata["environment"]).items()}},
            **result,
        )
    except READ_ERRORS as error:
        raise ValueError(f"{describe_file_error(file, error)}; remove the folder or run it again") from error


def read_result(file: Path) -> dict[str, Any]:
    """The fields of a record from result.json; empty if it does not exist. Raises ValueError if it is damaged."""
    if not file.exists():
        return {}
    try:
        result = read_json(file)
        accuracy, cost = accuracy_matrix(result["accuracy"]), mapping_in(result, "cost")
        metrics = {name: number(value) for name, value in mapping_in(result, "metrics").items()}
        if metrics.get("ACC") is None or not metrics.keys() >= {*METRICS}:
            raise ValueError("its metrics are incomplete")
        return {
            "accuracy": accuracy,
            "metrics": metrics,
            "steps": result["steps"] if is_whole(result.get("steps")) else None,
            "seconds": number(result.get("seconds")),
            "peak_memory": number(result.get("peak_memory_bytes")),
            **{key: number(cost.get(key)) for key in ("forward_samples", "backward_samples")},
        }
    except READ_ERRORS as error:
        raise ValueError(f"{describe_file_error(file, error)}; remove it and run again") from error


def compared_options(experiment: Mapping[str, Any]) -> dict[str, Scalar]:
    """The options that two runs of one experiment have in common."""
    excluded = ("seed", "stability_every", "evaluate_every", *UNCOMPARED_OPTIONS)
    return {key: value for key, value in scalar_options(experiment).items() if key not in excluded}


def images_option(manifest: Mapping[str, Any]) -> dict[str, Scalar]:
    """The digest of the training and test images, as one more option."""
    digests = [str(manifest[key]) for key in ("class_order", "split") if manifest.get(key)]
    return {IMAGES: "-".join(digests)} if digests else {}


def with_common_root(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Runs with the same images in different folders all get the options of the first such folder."""
    first: dict[object, dict[str, Scalar]] = {}
    result = []
    for record in records:
        if record.pixels:
            roots = {root: record.options[root] for root in ROOTS if root in record.options}
            same = first.setdefault((record.options.get(IMAGES), record.pixels), roots)
            record = replace(record, options=record.options | same)
        result.append(record)
    return result


def digest_of(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def mapping_in(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The mapping under a key, empty if it is missing."""
    value = content.get(key)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{key} is not a mapping")
    return value or {}


def number(value: Any) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{str(value)[:20]!r} is not a number")
    return value


def scalar_options(mapping: Mapping[str, Any]) -> dict[str, Scalar]:
    """Nested options by their dotted names; a list as its text.

    >>> scalar_options({"learner": {"name": "er", "lr": 0.1, "betas": [1, 2], "head": None}})
    {'learner.name': 'er', 'learner.lr': 0.1, 'learner.betas': '[1, 2]', 'learner.head': None}
    """
    return {key: value if isinstance(value, Scalar) else json.dumps(value) for key, value in flatten(mapping).items()}


def option_text(value: Any) -> str:
    """An option as it stands in an experiment file."""
    return value if isinstance(value, str) else json.dumps(value)
