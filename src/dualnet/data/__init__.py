"""Benchmarks by the name that an experiment file gives them."""

from dualnet.data.benchmark import AnyTasks, Benchmark, BenchmarkConfig, Examples, Task, ValidationTasks
from dualnet.data.image_folder import ImageFolder
from dualnet.data.mini_imagenet import MiniImageNet
from dualnet.data.procedural import Procedural

__all__ = [
    "BENCHMARKS",
    "AnyTasks",
    "Benchmark",
    "BenchmarkConfig",
    "Examples",
    "ImageFolder",
    "MiniImageNet",
    "Procedural",
    "Task",
    "ValidationTasks",
]

BENCHMARKS: dict[str, type[BenchmarkConfig]] = {
    "procedural": Procedural,
    "image_folder": ImageFolder,
    "mini_imagenet": MiniImageNet,
}
