"""Labels that are missing or late: the options, and which places of a stream they fall on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dualnet.options import check_at_least, check_choices

# The draws are the same for every seed of an experiment, so that seeds side by side have batches of equal shapes.
# Which examples they fall on is the seed's: its order of the examples is.
SHARE_SEED, DELAY_SEED = 0, 1
LONGEST = 10**9  # batches


@dataclass(frozen=True)
class LabelsConfig:
    share: float = 1.0  # rho: how much of the stream is ever labelled; the paper: 0.1 and 0.25
    drawn_per: Literal["sample", "batch"] = "sample"  # what keeps its label or loses it; batch: the authors' code
    delay: int = 0  # batches of images that come between an image and its label
    delay_spread: int = 0  # a label may be up to so many batches later still: then they come out of order

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: {self.share} is not above 0 and at most 1")
        check_at_least(self, 0, "delay", "delay_spread", most=LONGEST)
        check_choices(self)

    @property
    def late(self) -> bool:
        return self.delay > 0 or self.delay_spread > 0

    def kept(self, batches: Sequence[Tensor]) -> Tensor:
        """Which places of a stream of batches are ever labelled: bool [places]."""
        sizes = torch.tensor([len(batch) for batch in batches])
        draws = len(batches) if self.drawn_per == "batch" else int(sizes.sum())
        kept = torch.rand(draws, generator=torch.Generator().manual_seed(SHARE_SEED)) < self.share
        if not kept.any():
            num_images = int(sizes.sum())
            raise ValueError(f"labels.share: {self.share} leaves a stream of {num_images} images no label; give more")
        return kept.repeat_interleave(sizes) if self.drawn_per == "batch" else kept

    def delays(self, num_places: int) -> Tensor:
        """How many batches each place's label is late: int64 [places]."""
        generator = torch.Generator().manual_seed(DELAY_SEED)
        return self.delay + torch.randint(0, self.delay_spread + 1, (num_places,), generator=generator)
