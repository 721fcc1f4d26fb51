"""What the tests of the command line share: a tiny experiment, images, and commands on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

import dualnet

SOURCE = str(Path(dualnet.__file__).parent.parent)


TINY = {
    "benchmark": {
        "name": "procedural",
        "num_tasks": 2,
        "classes_per_task": 2,
        "train_per_class": 4,
        "test_per_class": 2,
        "image_size": 28,
    },
    "learner": {"name": "er", "width": 2, "updates": 1, "replay_size": 4},
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


def picture(path: Path, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (28, 28, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def files() -> dict[str, tuple[int, int]]:
    """All that lies here, folders too, with size and time."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in Path().rglob("*")}


def names_in(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def experiment_file(name: str, **sections: Any) -> str:
    Path(name).write_text(yaml.safe_dump({**TINY, **sections}))
    return name


def class_folders(classes: str = "abcd", per_class: int = 4) -> Path:
    for name in classes:
        for number in range(per_class):
            picture(Path("images", name, f"{number}.png"), number)
    return Path("images")


def image_folder(**options: Any) -> list[str]:
    """The command that runs on the folder `images`."""
    benchmark = {"name": "image_folder", "root": "images", "classes_per_task": 2, "image_size": 28, **options}
    return ["run", experiment_file("folder.yaml", benchmark=benchmark)]


def text(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


def run_tiny(*words: str) -> list[str]:
    return ["run", "tiny.yaml", *words]
