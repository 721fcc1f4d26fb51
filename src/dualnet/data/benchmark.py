"""A benchmark: tasks of labelled images, and the spec of their stream."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from dualnet.batch import StreamSpec
from dualnet.data.image_cache import CachedImages
from dualnet.options import BY_SEED, check_at_least, check_fields

VALIDATION_TASKS = 3  # as in the paper
Images = np.ndarray | CachedImages  # either is read by `images[rows]`, which copies
OrderSeed = Literal["seed"] | int | None  # seed: BY_SEED, so that every seed has a class order of its own


@dataclass(frozen=True, slots=True)
class Examples:
    """Labelled images: rows of an array that several tasks share."""

    array: Images  # uint8 [N, C, H, W]
    rows: np.ndarray  # int64 [n]: rows of the array
    labels: np.ndarray  # int64 [n]: class numbers

    def __len__(self) -> int:
        return len(self.rows)

    def load(self) -> tuple[Tensor, Tensor]:
        """Images uint8 [n, C, H, W] and labels int64 [n], copied from the array."""
        return torch.from_numpy(self.array[self.rows]), torch.from_numpy(self.labels.astype(np.int64))

    def name(self, number: int) -> str:
        """Folder and file name of an example; empty if the images are not files."""
        array = self.array
        return "/".join(Path(array.file(self.rows[number])).parts[-2:]) if isinstance(array, CachedImages) else ""


@dataclass(frozen=True, slots=True)
class Task:
    train: Examples
    test: Examples


@dataclass(frozen=True, slots=True)
class Benchmark:
    spec: StreamSpec  # task-aware: one mask row per task
    tasks: Sequence[Task]
    class_names: tuple[str, ...]  # by class number
    split_digest: str = ""  # of which images are for training and which for testing; empty if unknown
    validation: bool = False  # for choosing options only: no result is reported on these tasks


class BenchmarkConfig(ABC):
    """Options of one kind of benchmark: a frozen dataclass that makes it."""

    def __post_init__(self) -> None:
        check_fields(self)
        for option in ("root", "test_root"):
            if getattr(self, option, None) == "":
                raise ValueError(f"{option}: is empty; name the folder of the images")
        if isinstance(getattr(self, "order_seed", None), int):
            check_at_least(self, 0, "order_seed")

    @property
    def has_order_by_seed(self) -> bool:
        return getattr(self, "order_seed", None) == BY_SEED

    def for_seed(self, seed: int) -> Self:
        """The benchmark of a run: with the class order of its seed if that is asked for."""
        order: dict[str, Any] = {"order_seed": seed}
        return replace(self, **order) if self.has_order_by_seed else self  # pyright: ignore[reportArgumentType]

    @abstractmethod
    def make(self) -> Benchmark:
        """Read or draw the images. Raises ValueError, with the path and the remedy, if they cannot be used."""

    def make_validation(self) -> Benchmark:
        """Validation tasks, without any test image of `make`: other classes, or training images only."""
        remedy = "search on a benchmark that has them, such as mini_imagenet, and use the chosen options here"
        raise ValueError(f"benchmark: {type(self).__name__} has no validation tasks; {remedy}")
