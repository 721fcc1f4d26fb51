"""Objectives of the slow learner, by name. A new one is a file beside this and a line here."""

from dualnet.objectives.barlow_twins import BarlowTwins
from dualnet.objectives.objective import Objective

OBJECTIVES: dict[str, type[Objective]] = {"barlow_twins": BarlowTwins}

__all__ = ["OBJECTIVES", "BarlowTwins", "Objective"]
