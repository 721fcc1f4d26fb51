"""The registry of learners by name. Learners outside the package are given by their import path."""

from typing import Any

import torch

from dualnet.batch import StreamSpec
from dualnet.learners.ctn import CTN
from dualnet.learners.derpp import DERpp
from dualnet.learners.dualnet import DualNet
from dualnet.learners.er import ER
from dualnet.learners.er_ace import ERACE
from dualnet.learners.finetune import Finetune
from dualnet.learners.learner import Learner
from dualnet.learners.make_encoder import load_initial_weights
from dualnet.learners.mir import MIR
from dualnet.learners.offline import Offline
from dualnet.learners.shared_options import CommonOptions
from dualnet.learners.slda import SLDA
from dualnet.lookup import find_class
from dualnet.options import option_names

LEARNERS: dict[str, type[Learner]] = {
    "dualnet": DualNet,
    "er": ER,
    "er_ace": ERACE,
    "finetune": Finetune,
    "derpp": DERpp,
    "mir": MIR,
    "offline": Offline,
    "ctn": CTN,
    "slda": SLDA,
}


def learner_class(name: str) -> type[Learner]:
    """The learner of that name, or the class at an import path such as `my_package.my_module.MyLearner`."""
    cls = find_class(name, LEARNERS, Learner, "learner.name")
    config = getattr(cls, "Config", None)
    if not (isinstance(config, type) and issubclass(config, CommonOptions)):
        raise ValueError(f"learner.name: the Config of {name!r} does not inherit CommonOptions; see CONTRIBUTING.md")
    return cls


def learner_options() -> list[str]:
    """The dotted names of DualNet's options, most of which other learners have too."""
    return [f"learner.{name}" for name in option_names(DualNet.Config)]


def learner_name(learner: Learner) -> str:
    """The name by which `learner_class` finds the class of a learner. Raises ValueError if there is none."""
    for name, known in LEARNERS.items():
        if type(learner) is known:
            return name
    module, name = type(learner).__module__, type(learner).__qualname__
    if module == "__main__" or "." in name:  # defined in a script, or inside a function or class
        raise ValueError(f"{module}.{name}: cannot be imported by this name; define the learner in a module")
    return f"{module}.{name}"


def make_learner(
    name: str, spec: StreamSpec, config: Any = None, seed: int = 0, device: str = "cpu", fresh: bool = True
) -> Learner:
    """A new learner, seeded by one number. `config` is an instance of its Config; None: the defaults.

    With `fresh=False` no file with initial weights is read, because a checkpoint will be loaded.
    """
    cls = learner_class(name)
    if config is not None and not isinstance(config, cls.Config):
        options = f"{cls.__name__}.Config"
        raise ValueError(f"config: {type(config).__name__} is not {options}; give {options}(...) or None")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        learner = cls(spec, cls.Config() if config is None else config)
    for parameter in learner.parameters():
        if parameter.dim() == 4:  # convolutions are faster in this layout, which may also change the last bits
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    if fresh:
        load_initial_weights(learner)
    return learner.seed(seed).to(device)


__all__ = ["CTN", "ER", "ERACE", "LEARNERS", "MIR", "SLDA", "DERpp", "DualNet", "Finetune", "Learner", "Offline"]
__all__ += ["learner_class", "learner_name", "learner_options", "make_learner"]
