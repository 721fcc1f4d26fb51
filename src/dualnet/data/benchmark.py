"""A benchmark is data: tasks of labelled images, and the spec of the stream they make."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dualnet.batch import StreamSpec
from dualnet.data.image_cache import CachedImages
from dualnet.options import check_at_least, check_choices

VALIDATION_TASKS = 3  # as many as the paper's
Images = np.ndarray | CachedImages  # either is read by `images[rows]`, which copies
AT_LEAST = {  # the smallest value of an option, in every benchmark that has it
    **dict.fromkeys(("num_tasks", "classes_per_task", "train_per_class", "test_per_class"), 1),
    **dict.fromkeys(("validation_classes_per_task", "image_size", "input_size"), 1),
    **dict.fromkeys(("seed", "order_seed", "split_seed"), 0),
}


@dataclass(frozen=True, slots=True)
class Examples:
    """Labelled images: some rows of one array that many tasks share."""

    array: Images  # uint8 [N, C, H, W]
    rows: np.ndarray  # int64 [n]: which rows of the array these examples are
    labels: np.ndarray  # int64 [n]: class numbers of the benchmark

    def __len__(self) -> int:
        return len(self.rows)

    def load(self) -> tuple[Tensor, Tensor]:
        """Images uint8 [n, C, H, W] and labels int64 [n], copied out of the array."""
        return torch.from_numpy(self.array[self.rows]), torch.from_numpy(self.labels.astype(np.int64))

    def name(self, number: int) -> str:
        """Folder and file of one of them; empty where the images are no files."""
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
    split_digest: str = ""  # of which images are for training and which for testing; "": not known
    validation: bool = False  # True: options are chosen on these tasks, and no result is reported from them


class BenchmarkConfig(ABC):
    """Options of one kind of benchmark: a frozen dataclass that can make it."""

    def __post_init__(self) -> None:
        check_choices(self)
        for option in ("root", "test_root"):
            if getattr(self, option, None) == "":
                raise ValueError(f"{option}: is empty; name the folder of the images")
        for option, smallest in AT_LEAST.items():
            if getattr(self, option, None) is not None:
                check_at_least(self, smallest, option)

    @abstractmethod
    def make(self) -> Benchmark:
        """Read or draw the images. A user's mistake raises ValueError with the path and the remedy."""

    def current_split(self) -> str | None:
        """`split_digest` of what `make` would give now, without decoding an image; None where that is not known."""
        return None

    def make_validation(self) -> Benchmark:
        """Validation tasks. They share no test image with `make`: other classes, or training images alone."""
        remedy = "search on a benchmark that has some, such as mini_imagenet, and use the chosen options here"
        raise ValueError(f"benchmark: {type(self).__name__} has no validation tasks to choose options on; {remedy}")
