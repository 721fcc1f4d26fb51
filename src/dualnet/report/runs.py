"""Run folders as the report sees them: what was run, what came out, and which runs are not finished."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualnet import files
from dualnet.metrics import Matrix, accuracy_matrix
from dualnet.runs.experiment import with_defaults
from dualnet.runs.places import CACHE, ROOTS
from dualnet.runs.run_folder import HOW_OFTEN, WRITTEN_BESIDE, is_validation

from .events import Log, is_whole, read_log

# A resumed or repeated run may differ in these; they do not make it another experiment.
# Stream and manifest follow from the options and from the images, which `images_of` adds to them. A look at earlier
# tasks changes no result.
IMAGES = "benchmark.images"
NOT_OPTIONS = ("seed", "stability_every", *WRITTEN_BESIDE, *HOW_OFTEN)


@dataclass(frozen=True, slots=True)
class Run:
    """One seed of one experiment. accuracy is None until it is finished."""

    folder: Path
    name: str
    seed: str
    options: dict[str, str]  # dotted key -> text, without NOT_OPTIONS
    environment: dict[str, str]
    log: Log
    last_step: int | None
    pixels: str = ""  # digest of some images; "": not known, of an older version
    validation: bool = False  # a run of a search
    accuracy: Matrix | None = None  # percent, [tasks, tasks]
    seconds: float | None = None
    peak_memory: int | None = None  # bytes
    forward_samples: int | None = None  # images through the encoders while learning
    backward_samples: int | None = None


def find_runs(folders: Sequence[Path]) -> list[Run]:
    """All runs at or below the folders, at any depth, each once, in the order of the folders and then by name.

    Those of a search are left out: figures on validation tasks are no results.
    """
    found = {folder.resolve(): folder for root in folders for folder in _run_folders(Path(root))}
    if not found:
        below = ", ".join(str(folder) for folder in folders) or "no folder"
        raise ValueError(f"no runs found in {below}; run an experiment first or give the folder that holds its runs")
    runs = whole_runs(found.values())
    results = [run for run in runs if not run.validation]
    if not results:
        raise ValueError(f"{found.popitem()[1]}: a run of a search, on validation tasks; see the search's search.json")
    if left_out := len(runs) - len(results):
        warnings.warn(f"{left_out} runs of a search are left out: they are on validation tasks", stacklevel=2)
    return with_images(with_one_root(results))


def whole_runs(folders: Iterable[Path]) -> list[Run]:
    """Those that can be read; one warning tells of the others. Raises ValueError if there are only others."""
    runs: list[Run] = []
    damaged: list[str] = []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except ValueError as error:
            damaged.append(str(error))
    if damaged and not runs:
        raise ValueError(damaged[0])
    if damaged:
        more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        warnings.warn(f"left out, damaged: {damaged[0]}{more}", stacklevel=2)
    return runs


def with_one_root(runs: Sequence[Run]) -> list[Run]:
    """Images that have moved are the same ones: their runs are taken to have the folder of the first."""
    first: dict[object, dict[str, str]] = {}
    known = []
    for run in runs:
        if run.pixels:
            roots = {root: run.options[root] for root in ROOTS if root in run.options}
            run = replace(run, options=run.options | first.setdefault((run.options.get(IMAGES), run.pixels), roots))
        known.append(run)
    return known


def with_images(runs: Sequence[Run]) -> list[Run]:
    """A run that is older than manifests is taken to have the images of its benchmark, if all others have the same."""
    known: dict[object, set[str]] = {}
    for run in runs:
        known.setdefault(_benchmark(run), set()).update({run.options[IMAGES]} if IMAGES in run.options else set())
    filled = []
    for run in runs:
        images = known[_benchmark(run)]
        if IMAGES not in run.options and len(images) == 1:
            run = replace(run, options={**run.options, IMAGES: next(iter(images))})
        filled.append(run)
    return filled


def _benchmark(run: Run) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, v) for k, v in run.options.items() if k.startswith("benchmark.") and k != IMAGES))


def _run_folders(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder; give a folder that holds runs")
    marks = [*root.rglob("experiment.yaml"), *root.rglob("result.json")]
    yield from sorted({mark.parent for mark in marks}, key=_natural)


def _natural(folder: Path) -> list[tuple[int, str]]:
    """Sort key that puts seed-2 before seed-10."""
    words = "".join(c if c.isdigit() else f" {c} " for c in str(folder)).split()
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


def read_run(folder: Path) -> Run:
    """The run in a folder, finished or not."""
    experiment = _read_experiment(folder / "experiment.yaml")
    log = read_log(folder / "log.jsonl")
    # A run of an older version is no other experiment where it lacks an option that has its default elsewhere.
    options = {key: value for key, value in with_defaults(experiment).items() if key not in NOT_OPTIONS}
    return Run(
        folder=folder,
        name=str(experiment["name"]),
        seed=str(experiment["seed"]),
        options={key: value for key, value in flatten(options).items() if key != CACHE} | images_of(experiment),
        environment=flatten(experiment.get("environment") or {}),
        pixels=pixels_of(experiment),
        validation=is_validation(experiment),
        log=log,
        **{"last_step": log.last_step, **_read_result(folder / "result.json")},
    )


def images_of(experiment: Mapping[str, Any]) -> dict[str, str]:
    """As one more option, which images were learned and tested: a folder of the same name may hold others."""
    manifest = experiment.get("manifest") or {}
    digests = [manifest[key] for key in ("class_order", "split") if manifest.get(key)]
    return {IMAGES: "-".join(digests)} if digests else {}


def pixels_of(experiment: Mapping[str, Any]) -> str:
    stream = experiment.get("stream")
    return str(stream.get("pixels", "")) if isinstance(stream, Mapping) else ""


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, str]:
    """A nested mapping as dotted keys and texts.

    >>> flatten({"learner": {"name": "er", "betas": [1, 2], "head": None}})
    {'learner.name': 'er', 'learner.betas': '[1, 2]', 'learner.head': 'null'}
    """
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def _read_experiment(path: Path) -> Mapping[str, Any]:
    try:
        experiment = files.read_yaml(path)
    except ValueError as error:
        raise ValueError(f"{error}; remove the folder or run it again") from error
    if not {"name", "seed"} <= set(experiment):
        raise ValueError(f"{path} has no name and seed; remove the folder or run it again")
    if not isinstance(experiment.get("environment") or {}, Mapping):
        raise ValueError(f"{path}: environment is not a mapping; remove the folder or run it again")
    return experiment


def _read_result(path: Path) -> dict[str, Any]:
    """The fields of a finished run; none while there is no result."""
    if not path.exists():
        return {}
    try:
        result = files.read_json(path)
        cost = result.get("cost") or {}
        return {
            "accuracy": accuracy_matrix(result["accuracy"]),
            "seconds": _number(result.get("seconds")),
            "peak_memory": _number(result.get("peak_memory_bytes")),
            **{key: _number(cost.get(key)) for key in ("forward_samples", "backward_samples")},
            **({"last_step": result["steps"]} if is_whole(result.get("steps")) else {}),
        }
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is not a result ({files.reason(error)}); remove it and run again") from error


def _number(value: Any) -> Any:
    """The value, checked: a number or nothing."""
    if value is not None and not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return value
