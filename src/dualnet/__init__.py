"""DualNet: continual learning, fast and slow (Pham, Liu and Hoi, NeurIPS 2021).

Names are imported when they are used: `import dualnet` and `dualnet --help` do not wait for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dualnet.batch import UNLABELLED, Batch, StreamSpec
    from dualnet.learners import ER, LEARNERS, DualNet, Finetune, Learner, make_learner
    from dualnet.runs.model import Model, load

    __version__: str
else:
    import importlib

    HOMES = {
        "dualnet.batch": ("UNLABELLED", "Batch", "StreamSpec"),
        "dualnet.learners": ("ER", "LEARNERS", "DualNet", "Finetune", "Learner", "make_learner"),
        "dualnet.runs.model": ("Model", "load"),
    }

    def __getattr__(name: str) -> object:
        home = next((home for home, names in HOMES.items() if name in names), None)
        if name == "__version__":
            value = find_version()
        elif name in ("batch", "learners"):  # reached as attributes: dualnet.learners.CTN
            value = importlib.import_module(f"dualnet.{name}")
        elif home is not None:
            value = getattr(importlib.import_module(home), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, value)

    def __dir__() -> list[str]:
        return sorted({*globals(), *(name for names in HOMES.values() for name in names), "__version__"})

    def find_version() -> str:
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("dualnet")
        except PackageNotFoundError:  # a checkout that is not installed
            return "0+unknown"


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
