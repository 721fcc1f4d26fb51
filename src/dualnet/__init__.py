"""DualNet: continual learning, fast and slow (Pham, Liu and Hoi, NeurIPS 2021)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.learners import ER, LEARNERS, DualNet, Finetune, Learner, make_learner

if TYPE_CHECKING:
    from dualnet.experiment.model import Model

try:
    __version__ = version("dualnet")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"


def load(run: str | Path, device: str = "cpu") -> Model:
    """The model of a run folder: `load("runs/demo-dualnet/seed-0").predict(["cat.jpg"])`."""
    from dualnet.experiment import model  # files and YAML are not needed to teach a learner

    return model.load(run, device)


__all__ = [
    "ER",
    "LEARNERS",
    "UNLABELLED",
    "Batch",
    "DualNet",
    "Finetune",
    "Learner",
    "StreamSpec",
    "load",
    "make_learner",
]
