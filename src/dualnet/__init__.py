"""DualNet: continual learning, fast and slow (Pham, Liu and Hoi, NeurIPS 2021).

Names are imported when they are used: `import dualnet` and `dualnet --help` do not wait for PyTorch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dualnet.batch import UNLABELLED, Batch, StreamSpec
    from dualnet.data.sources import from_hugging_face, from_torch, to_folder
    from dualnet.estimator import DualNetClassifier as DualNetClassifier
    from dualnet.learners import ER, LEARNERS, DualNet, Finetune, Learner, make_learner
    from dualnet.models.model import Model, load

    __version__: str
else:
    from importlib import import_module, metadata

    def __getattr__(name: str) -> object:
        if name == "__version__":
            try:
                value = metadata.version("dualnet")
            except metadata.PackageNotFoundError:  # a checkout that is not installed
                value = "0+unknown"
        elif name in ("batch", "learners"):  # reached as attributes: dualnet.learners.CTN
            value = import_module(f"dualnet.{name}")
        elif name == "DualNetClassifier":  # not in __all__: it needs scikit-learn
            value = import_module("dualnet.estimator").DualNetClassifier
        elif name in __all__:
            homes = map(
                import_module, ("dualnet.batch", "dualnet.learners", "dualnet.models.model", "dualnet.data.sources")
            )
            value = next(getattr(home, name) for home in homes if hasattr(home, name))
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, value)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "DualNetClassifier", "__version__"})


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
    "from_hugging_face",
    "from_torch",
    "load",
    "make_learner",
    "to_folder",
]
