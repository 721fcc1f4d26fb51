"""Blurry task boundaries: a share of the examples comes during other tasks (i-Blurry, Koh et al., 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualnet.data.splits import permutation

MOVES = 1  # distinguishes the draws here from those of `shuffled`


@dataclass(frozen=True)
class BlurryConfig:
    """Blurry task boundaries. The i-Blurry-50-10 of Koh et al. is `share: 0.1, disjoint: 0.5`."""

    share: float = 0.0  # M: share of the examples that are dealt to all tasks; 0: sharp boundaries
    disjoint: float = 0.0  # N: share of the classes of each task of which no example is dealt

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share: {self.share} is not between 0 and 1")
        if not 0 <= self.disjoint < 1:
            raise ValueError(f"disjoint: {self.disjoint} is not at least 0 and below 1")
        if self.disjoint and not self.share:
            raise ValueError(f"disjoint: {self.disjoint} has no effect with share 0; give a share, or leave it out")

    def may_move(self, labels: Sequence[Tensor]) -> Tensor:
        """Which examples belong to classes that are not disjoint: bool [examples]. `labels` are those of each task.

        The disjoint classes are the first of each task. Raises ValueError if no example would move.
        """
        moving = []
        for of_task in labels:
            classes = of_task.unique()
            moving.append(torch.isin(of_task, classes[round(self.disjoint * len(classes)) :]))
        if self.share and sum(self.num_dealt(int(task.sum())) > 0 for task in moving) < 2:
            what = f"{self.share}, with disjoint {self.disjoint}, leaves fewer than two tasks that exchange examples"
            raise ValueError(f"blurry.share: {what}; give a larger share, a smaller disjoint, or more tasks")
        return torch.cat(moving)

    def num_dealt(self, num_candidates: int) -> int:
        return round(self.share * num_candidates)

    def blur(self, order: Tensor, sizes: Sequence[int], may_move: Tensor, seed: int) -> Tensor:
        """The example at each position, from the order of sharp tasks: int64 [positions].

        A share of the positions of each task is drawn, and the examples at the positions of all tasks are shuffled.
        """
        drawn = []
        for task, positions in enumerate(torch.arange(len(order)).split(list(sizes))):
            candidates = positions[may_move[order[positions]]]
            chosen = permutation(len(candidates), [seed, task, MOVES])[: self.num_dealt(len(candidates))]
            drawn.append(candidates[torch.from_numpy(chosen)])
        dealt = torch.cat(drawn)
        places = dealt[torch.from_numpy(permutation(len(dealt), [seed, len(sizes), MOVES]))]
        return order.index_copy(0, places, order[dealt])
