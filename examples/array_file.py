"""A benchmark outside of the package: images and labels from a NumPy file. `array-file.yaml` runs it.

PYTHONPATH=examples dualnet run examples/array-file.yaml --benchmark.file images.npz
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.data.splits import Split, divide_classes, make_benchmark


@dataclass(frozen=True)
class ArrayFile(BenchmarkConfig):
    """Tasks of consecutive classes from an .npz file with `images`, `labels` and `is_test`."""

    file: str = "images.npz"  # images uint8 [N, 3, H, W], labels int [N] from 0 on, is_test bool [N]
    classes_per_task: int = 2

    def make(self) -> Benchmark:
        if not Path(self.file).is_file():
            raise ValueError(f"benchmark.file: {self.file} does not exist; give an .npz file")
        with np.load(self.file) as arrays:
            images, labels, is_test = (arrays[name] for name in ("images", "labels", "is_test"))
        classes = [f"class {number}" for number in range(labels.max() + 1)]
        names = [f"image {number}" for number in range(len(labels))]
        tasks = divide_classes(len(classes), self.classes_per_task)
        return make_benchmark(images, Split(labels.astype(np.int64), is_test, classes, tasks, names))
