"""DualNet: continual learning, fast and slow (Pham, Liu and Hoi, NeurIPS 2021)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.learners import ER, LEARNERS, DualNet, Finetune, Learner, make_learner

if TYPE_CHECKING:
    from dualnet.runs.model import Model

try:
    __version__ = version("dualnet")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"


def load(run: str | Path, device: str = "cpu") -> Model:
    """The model of a run folder, or one that was saved: `load("runs/demo-dualnet/seed-0").predict("cat.jpg")`.

    If it learned task-aware, `predict` needs the task: see there.
    """
    from dualnet.runs import model  # files and YAML are not needed to teach a learner

    return model.load(run, device)


if not TYPE_CHECKING:  # a checker would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name == "Model":  # for the same reason it is not imported above
            from dualnet.runs.model import Model

            return Model
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ER",
    "LEARNERS",
    "UNLABELLED",
    "Batch",
    "DualNet",
    "Finetune",
    "Learner",
    "Model",
    "StreamSpec",
    "load",
    "make_learner",
]
