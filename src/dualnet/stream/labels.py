"""Missing and late labels: the options, and the positions of a stream that they affect."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dualnet.options import check_at_least, check_choices

# The draws are over positions and the same for every seed of an experiment, so that seeds that are trained side by
# side have batches of equal shapes. The seed decides which example is at a position.
SHARE_SEED, DELAY_SEED = 0, 1
MAX_DELAY = 10**9  # batches


@dataclass(frozen=True)
class LabelsConfig:
    share: float = 1.0  # rho: share of the stream that is labelled; the paper: 0.1 and 0.25
    drawn_per: Literal["sample", "batch"] = "sample"  # labels are kept or dropped per sample or, as the authors, batch
    delay: int = 0  # batches of images between an image and its label
    delay_spread: int = 0  # labels are up to this many batches later still, and so arrive out of order

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: {self.share} is not above 0 and at most 1")
        check_at_least(self, 0, "delay", "delay_spread", most=MAX_DELAY)
        check_choices(self)

    @property
    def are_late(self) -> bool:
        return self.delay > 0 or self.delay_spread > 0

    def kept(self, batches: Sequence[Tensor]) -> Tensor:
        """Which positions of a stream of batches are labelled: bool [positions]."""
        sizes = torch.tensor([len(batch) for batch in batches])
        draws = len(batches) if self.drawn_per == "batch" else int(sizes.sum())
        kept = torch.rand(draws, generator=torch.Generator().manual_seed(SHARE_SEED)) < self.share
        if not kept.any():
            num_images = int(sizes.sum())
            raise ValueError(f"labels.share: {self.share} of {num_images} images leaves no label; give a larger share")
        return kept.repeat_interleave(sizes) if self.drawn_per == "batch" else kept

    def delays(self, num_positions: int) -> Tensor:
        """The delay of the label at each position, in batches: int64 [positions]."""
        generator = torch.Generator().manual_seed(DELAY_SEED)
        return self.delay + torch.randint(0, self.delay_spread + 1, (num_positions,), generator=generator)
