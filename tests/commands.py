"""Shared by tests of the command line: a small experiment, images, and commands that use them."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

import dualnet

SOURCE = Path(dualnet.__file__).resolve().parent.parent
PROGRAM = [sys.executable, "-m", "dualnet"]
BENCHMARK = {"name": "procedural", "num_tasks": 2, "classes_per_task": 2, "image_size": 28}
BENCHMARK |= {"train_per_class": 6, "test_per_class": 2}
TINY = {
    "benchmark": {**BENCHMARK, "train_per_class": 4},
    "learner": {"name": "er", "encoder": {"width": 2}, "updates": 1, "replay_size": 4},
    "batch_size": 4,
}
OWN_LEARNER = """
from dualnet import Finetune

class Own(Finetune):
    pass

class NoConfig(Finetune):
    Config = dict

class NoLearner:
    pass
"""


def environment(*folders: Path, **variables: str) -> dict[str, str]:
    """Environment variables of a process with one thread, with the folders and this package on its path."""
    path = os.pathsep.join(map(str, (*folders, SOURCE)))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}


def picture(path: Path, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (28, 28, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def files(folder: Path | str = ".") -> dict[str, tuple[int, int]]:
    """Size and time of all files and folders in a folder."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in Path(folder).rglob("*")}


def file_times(folder: Path | str = ".") -> dict[Path, int]:
    """Times of all files. Those of folders are 0, since a lock file that is removed again changes them."""
    return {path: 0 if path.is_dir() else path.stat().st_mtime_ns for path in Path(folder).rglob("*")}


def names_in(folder: Path | str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def experiment_file(name: str, **sections: Any) -> str:
    Path(name).write_text(yaml.safe_dump({**TINY, **sections}))
    return name


def class_folders(
    classes: Iterable[str] = "abcd", per_class: int = 4, root: Path | str = "images", seed: int = 0
) -> Path:
    for place, name in enumerate(classes):
        for number in range(per_class):
            picture(Path(root, name, f"{number}.png"), seed + 100 * place + number)
    return Path(root)


def image_folder(**options: Any) -> list[str]:
    """The command that runs on the folder `images`."""
    benchmark = {"name": "image_folder", "root": "images", "classes_per_task": 2, "image_size": 28, **options}
    return ["run", experiment_file("folder.yaml", benchmark=benchmark)]


def text(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


def run_tiny(*words: str) -> list[str]:
    return ["run", "tiny.yaml", *words]
