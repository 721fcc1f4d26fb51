"""A run folder: what one seed of an experiment leaves behind, and what a stopped run goes on from."""

from __future__ import annotations

import fcntl
import json
import platform
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from dualnet import atomic
from dualnet.data import Benchmark
from dualnet.files import read_json, read_yaml
from dualnet.machine import cpu_name
from dualnet.options import plain
from dualnet.runs import checkpoint
from dualnet.runs.experiment import Experiment, parse
from dualnet.runs.manifest import manifest_of
from dualnet.runs.places import CACHE, ROOTS, elsewhere, pixels_digest

MODEL_FILE = "model.yaml"  # says what a model is that was saved apart from any run
WRITTEN_BESIDE = ("stream", "manifest", "environment")  # in experiment.yaml, beside the options
HOW_OFTEN = ("log_every", "checkpoint_every")
FREE_TO_CHANGE = (*HOW_OFTEN, *ROOTS, CACHE)  # options that decide no result: a resumed run may have others


class RunFolder:
    """experiment.yaml, log.jsonl, checkpoint/ and, once finished, result.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment_file = path / "experiment.yaml"
        self.log_file = path / "log.jsonl"
        self.result_file = path / "result.json"
        self.checkpoints = path / "checkpoint"
        self.lock: IO[str] | None = None

    @property
    def finished(self) -> bool:
        return self.result_file.exists()

    def prepare(self, experiment: Experiment, benchmark: Benchmark, device: torch.device) -> None:
        """Make the folder, or take over one of the same experiment. Raises ValueError if it holds another one."""
        self.make()
        self.take_lock()
        checkpoint.clean(self.path)
        checkpoint.clean(self.checkpoints)
        if self.experiment_file.exists():
            self.check_same(experiment)
            self.check_same_stream(experiment, benchmark)
            return
        content = {
            **experiment.mapping(),
            "stream": {**describe_stream(benchmark), "pixels": pixels_digest(benchmark)},
            "manifest": manifest_of(experiment, benchmark).mapping(),
            "environment": environment(device),
        }
        atomic.write(self.experiment_file, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    def make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise ValueError(f"{self.path}: cannot be made ({error.strerror}); choose another --out") from error

    def take_lock(self) -> None:
        """Held until `release` or the end of the process: two processes must not write one folder."""
        lock = (self.path / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise ValueError(
                f"{self.path}: another process is running here; wait for it or choose another --out"
            ) from error
        self.lock = lock

    def release(self) -> None:
        if self.lock is not None:
            self.lock.close()
            self.lock = None

    def check_same(self, experiment: Experiment) -> None:
        """Raises ValueError naming an option if the folder holds another experiment, or one that is not whole."""
        self.check_result()
        if not self.experiment_file.exists():
            return
        there, asked = flat(self.read_experiment().mapping()), flat(experiment.mapping())
        keys = [key for key in {**there, **asked} if key not in FREE_TO_CHANGE]
        different = [key for key in keys if there.get(key) != asked.get(key)]
        if (root := elsewhere(there, asked)) and "pixels" not in self.read()["stream"]:  # an older folder has none
            different.append(root)
        if different:
            key = different[0]
            more = f" and {len(different) - 1} more" if len(different) > 1 else ""
            raise ValueError(
                f"{self.path}: holds another experiment ({key} is {there.get(key)} there, {asked.get(key)} here{more})"
                "; choose another --out"
            )

    def check_result(self) -> None:
        if not self.finished:
            return
        if not self.experiment_file.exists():
            raise ValueError(
                f"{self.path}: has a result.json and no experiment.yaml, so what was run is not known; "
                "remove it or choose another --out"
            )
        try:
            if "accuracy" not in read_json(self.result_file):
                raise ValueError(f"{self.result_file}: has no `accuracy`")
        except ValueError as error:
            raise ValueError(f"{error}; remove it, and the same command makes it again") from error

    def check_purpose(self, validation: bool) -> None:
        """Raises ValueError if figures for choosing and figures for reporting would meet in this folder."""
        if not self.experiment_file.exists() or validation == is_validation(self.read()):
            return
        there = "the test tasks of an experiment" if validation else "validation tasks, for a search"
        raise ValueError(f"{self.path}: holds a run on {there}; choose another --out")

    def lies_elsewhere(self, experiment: Experiment) -> bool:
        """Whether the images were read from another folder, which may have held the same ones."""
        return self.experiment_file.exists() and elsewhere(flat(self.read()), flat(experiment.mapping())) is not None

    def check_same_stream(self, experiment: Experiment, benchmark: Benchmark) -> None:
        """The options may be the same and the images others: a file that came or went moves the whole stream.

        A renamed file may change sides, from training to testing: the digest of the split tells. Where the images lie
        in another folder now, their pixels must be the same too.
        """
        content, asked = self.read(), flat(experiment.mapping())
        split = (content.get("manifest") or {}).get("split") or benchmark.split_digest  # an older folder has none
        there = dict(content["stream"])
        pixels, root = there.pop("pixels", None), elsewhere(flat(content), asked)
        other_pixels = root is not None and pixels != pixels_digest(
            benchmark
        )  # another decoder may differ in some bits
        if there != describe_stream(benchmark) or split != benchmark.split_digest or other_pixels:
            why = f" ({root} is {flat(content).get(root)} there, {asked.get(root)} here)" if root else ""
            raise ValueError(
                f"{self.path}: was begun with other images or classes{why}; bring those back or choose another --out"
            )

    def read(self) -> dict[str, Any]:
        """experiment.yaml as it stands, with stream, manifest and environment."""
        if not self.experiment_file.is_file():
            raise ValueError(f"{self.path}: not a run folder (no experiment.yaml); give a folder like runs/NAME/seed-0")
        content = read_yaml(self.experiment_file)
        if "stream" not in content:
            raise ValueError(f"{self.experiment_file}: has no `stream`, so no run has written it; give a run folder")
        return content

    def read_experiment(self) -> Experiment:
        content = self.read()
        try:
            return parse({key: value for key, value in content.items() if key not in WRITTEN_BESIDE})
        except ValueError as error:
            remedy = "if another version of dualnet made it, use that one or choose another folder"
            raise ValueError(f"{self.experiment_file}: {error}; {remedy}") from error

    def newest_checkpoint(self) -> tuple[int, dict[str, Any]] | None:
        """Step and content of the newest checkpoint that can be trusted; a damaged one is passed over and named."""
        steps = checkpoint.steps(self.checkpoints)
        while steps:
            step = steps.pop()
            try:
                return step, checkpoint.load(self.checkpoints, step)
            except ValueError as error:
                instead = "the one before it is used" if steps else "there is none before it"
                warnings.warn(f"{error}; {instead}", stacklevel=2)
        return None

    def write_result(self, result: Mapping[str, Any]) -> None:
        atomic.write(self.result_file, json.dumps(result, indent=1) + "\n")


def check_out(out: Path) -> None:
    """Raises ValueError if run folders cannot be made below."""
    check_no_file(out)
    if (out / "experiment.yaml").is_file() and (out / "log.jsonl").is_file():
        raise ValueError(f"{out} is a run folder; give --out {out.parent}")
    if (out / MODEL_FILE).is_file():
        raise ValueError(f"{out} is a saved model; give --out another folder")


def check_no_file(out: Path) -> None:
    for place in (out, *out.parents):
        if place.exists() and not place.is_dir():
            raise ValueError(f"{place} is a file; give --out a folder")


def is_validation(content: Mapping[str, Any]) -> bool:
    """Whether an experiment.yaml was written by a run on validation tasks."""
    stream = content.get("stream")
    return isinstance(stream, Mapping) and bool(stream.get("validation"))


def describe_stream(benchmark: Benchmark) -> dict[str, Any]:
    spec = benchmark.spec
    return plain(
        {
            **({"validation": True} if benchmark.validation else {}),
            "image_shape": spec.image_shape,
            "input_size": spec.input_size,
            "class_names": benchmark.class_names,
            "tasks": [row.nonzero().flatten().tolist() for row in spec.class_mask],
            "train_sizes": [len(task.train) for task in benchmark.tasks],
            "test_sizes": [len(task.test) for task in benchmark.tasks],
        }
    )


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and hardware: what a figure must name."""
    from dualnet import __version__

    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    return {
        "dualnet": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": sys.platform,
        "device": device.type,
        "hardware": hardware,
        "threads": torch.get_num_threads(),
    }


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by their dotted names.

    >>> flat({"a": {"x": 1}, "b": 2})
    {'a.x': 1, 'b': 2}
    """
    out: dict[str, Any] = {}
    for key, value in mapping.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out
