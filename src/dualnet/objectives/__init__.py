"""The registry of the slow learner's objectives by name. Those outside the package are given by their import path."""

from collections.abc import Mapping
from typing import Any

from dualnet.lookup import find_class
from dualnet.objectives.barlow_twins import BarlowTwins
from dualnet.objectives.byol import BYOL
from dualnet.objectives.classification import Classification
from dualnet.objectives.objective import EmbeddingObjective, Objective, ProjectorOptions
from dualnet.objectives.simclr import SimCLR
from dualnet.objectives.simsiam import SimSiam
from dualnet.objectives.vicreg import VICReg
from dualnet.options import build

OBJECTIVES: dict[str, type[Objective]] = {
    "barlow_twins": BarlowTwins,
    "simclr": SimCLR,
    "simsiam": SimSiam,
    "vicreg": VICReg,
    "byol": BYOL,
    "classification": Classification,
}


def objective_class(name: str) -> type[Objective]:
    """The objective of that name, or the class at an import path such as `my_package.my_module.MyObjective`."""
    return find_class(name, OBJECTIVES, Objective, "slow.objective")


def parse_objective(name: str, options: Mapping[str, Any]) -> tuple[type[Objective], Any]:
    """Class and Config of an objective."""
    kind = objective_class(name)
    return kind, build(kind.Config, options, "slow.objective_options")


__all__ = ["BYOL", "OBJECTIVES", "BarlowTwins", "Classification", "EmbeddingObjective", "Objective"]
__all__ += ["ProjectorOptions", "SimCLR", "SimSiam", "VICReg", "objective_class", "parse_objective"]
