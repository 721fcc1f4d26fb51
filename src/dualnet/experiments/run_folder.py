"""The folder of a run: preparing it, and checking that it holds the same run when it is resumed."""

import hashlib
import platform
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from dualnet import atomic
from dualnet.data.benchmark import Benchmark
from dualnet.experiments.experiment import Experiment
from dualnet.experiments.final_predictions import CLASSES_FILE
from dualnet.experiments.manifest import manifest_of
from dualnet.experiments.model_folder import ModelFolder
from dualnet.experiments.record import (
    EXPERIMENT_FILE,
    LOG_FILE,
    RESULT_FILE,
    RESULT_NEUTRAL_OPTIONS,
    ROOTS,
    RunRecord,
    describe_missing,
    read_record,
)
from dualnet.experiments.run_log import read_log
from dualnet.experiments.saved_learner import describe_stream
from dualnet.machine import cpu_name
from dualnet.options import flatten
from dualnet.text import join_first

DIGEST_IMAGES = 10  # training and test images of each task in the digest of the pixels


class RunFolder(ModelFolder):
    """A model with its experiment.yaml, log.jsonl and, once finished, classes.json and result.json."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.experiment_file = path / EXPERIMENT_FILE
        self.log_file = path / LOG_FILE
        self.classes_file = path / CLASSES_FILE
        self.result_file = path / RESULT_FILE

    @property
    def finished(self) -> bool:
        return self.result_file.exists()

    @property
    def diverged(self) -> str | None:
        """Why the run is not tried again, if it has diverged."""
        return None if self.finished else read_log(self.log_file).diverged

    @property
    def started(self) -> bool:
        return self.experiment_file.exists()

    @cached_property
    def record(self) -> RunRecord:
        """The content of the folder, read once: experiment.yaml is never rewritten."""
        if not self.started:
            raise ValueError(describe_missing(self.path))
        return read_record(self.path)

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must contain, so that the run continues from it."""
        return {"seed": int(self.record.seed), "experiment": self.record.digest}

    def prepare(self, experiment: Experiment, benchmark: Benchmark, device: torch.device) -> None:
        """Start a run in the locked folder, or resume the one that it holds, which has been checked."""
        atomic.remove_temporary(self.path)
        atomic.remove_temporary(self.checkpoints)
        if self.started:
            return
        content = {
            **experiment.mapping(),
            "stream": {**describe_tasks(benchmark), "pixels": pixels_digest(benchmark)},
            "manifest": manifest_of(experiment, benchmark),
            "environment": environment(device),
        }
        atomic.write(self.experiment_file, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    def check_same(self, experiment: Experiment) -> None:
        """Raises ValueError if the folder holds another experiment, naming an option, or is damaged."""
        if not self.started:
            return
        stored, given = flatten(self.record.experiment), flatten(experiment.mapping())
        different = [
            f"{key} is {stored.get(key)} there, {given.get(key)} here"
            for key in {**stored, **given}
            if key not in RESULT_NEUTRAL_OPTIONS and stored.get(key) != given.get(key)
        ]
        if different:
            raise ValueError(
                f"{self.path}: holds another experiment ({join_first(different, 1)}); choose another --out"
            )

    def check_purpose(self, validation: bool) -> None:
        """Raises ValueError if the folder holds a run on test tasks and not on validation tasks, or vice versa."""
        if not self.started or validation == self.record.validation:
            return
        tasks = "the test tasks of an experiment" if validation else "validation tasks, for a search"
        raise ValueError(f"{self.path}: holds a run on {tasks}; choose another --out")

    def moved(self, experiment: Experiment) -> str | None:
        """Which option names another folder of images than the run had; it may hold the same images."""
        stored, given = flatten(self.record.experiment), flatten(experiment.mapping())
        roots = [(root, stored.get(root), given.get(root)) for root in ROOTS]
        return next((f"{root} is {a} there, {b} here" for root, a, b in roots if not same_folder(a, b)), None)

    def check_same_stream(self, experiment: Experiment, benchmark: Benchmark) -> None:
        """Raises ValueError if the images have changed: a file that was added or removed changes all batches.

        A renamed file may have moved from training to testing, which changes the digest of the split. The pixels are
        compared only if the images are in another folder now, since another decoder may differ in some bits.
        """
        moved = self.moved(experiment)
        stream = {key: value for key, value in self.record.stream.items() if key != "pixels"}
        other_split = self.record.manifest.get("split") != benchmark.split_digest
        other_pixels = moved is not None and self.record.pixels != pixels_digest(benchmark)
        if stream != describe_tasks(benchmark) or other_split or other_pixels:
            why = f" ({moved})" if moved else ""
            raise ValueError(
                f"{self.path}: was started with other images or classes{why}; restore those or choose another --out"
            )


def check_out(out: Path) -> None:
    """Raises ValueError if run folders cannot be made inside of it."""
    for path in (out, *out.parents):
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file; give --out a folder")
    if (out / EXPERIMENT_FILE).is_file() and (out / LOG_FILE).is_file():
        raise ValueError(f"{out} is a run folder; give --out {out.parent}")
    if ModelFolder(out).holds_model:
        raise ValueError(f"{out} is a saved model; give --out another folder")


def same_folder(path: Any, other_path: Any) -> bool:
    """Whether two paths mean the same folder: `images`, `images/`, or an absolute path.

    >>> same_folder("images", "./images/"), same_folder("images", "other"), same_folder(None, "images")
    (True, False, False)
    """
    if not isinstance(path, str) or not isinstance(other_path, str):
        return path == other_path
    return Path(path).expanduser().resolve() == Path(other_path).expanduser().resolve()


def describe_tasks(benchmark: Benchmark) -> dict[str, Any]:
    return {
        **({"validation": True} if benchmark.validation else {}),
        **describe_stream(benchmark.spec, benchmark.class_names),
        "train_sizes": [len(task.train) for task in benchmark.tasks],
        "test_sizes": [len(task.test) for task in benchmark.tasks],
    }


def pixels_digest(benchmark: Benchmark) -> str:
    """Digest of some images of every task: files of the same names in two folders may hold different images."""
    digest = hashlib.blake2b(digest_size=8)
    for task in benchmark.tasks:
        for side in (task.train, task.test):
            some = np.linspace(0, len(side) - 1, min(len(side), DIGEST_IMAGES)).astype(int)
            digest.update(np.ascontiguousarray(side.array[side.rows[some]]).tobytes())
    return digest.hexdigest()


def environment(device: torch.device) -> dict[str, Any]:
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
