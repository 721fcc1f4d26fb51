"""The registry of the slow learner's objectives by name."""

from dualnet.objectives.barlow_twins import BarlowTwins
from dualnet.objectives.byol import BYOL
from dualnet.objectives.classification import Classification
from dualnet.objectives.objective import Objective
from dualnet.objectives.simclr import SimCLR
from dualnet.objectives.simsiam import SimSiam
from dualnet.objectives.vicreg import VICReg

OBJECTIVES: dict[str, type[Objective]] = {
    "barlow_twins": BarlowTwins,
    "simclr": SimCLR,
    "simsiam": SimSiam,
    "vicreg": VICReg,
    "byol": BYOL,
    "classification": Classification,
}

__all__ = ["BYOL", "OBJECTIVES", "BarlowTwins", "Classification", "Objective", "SimCLR", "SimSiam", "VICReg"]
