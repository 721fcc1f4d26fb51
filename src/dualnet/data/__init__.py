"""Benchmarks, by their names in experiment files."""

from dualnet.data.benchmark import Benchmark, BenchmarkConfig, Examples, Task
from dualnet.data.cifar100 import Cifar100
from dualnet.data.core50 import Core50
from dualnet.data.image_folder import ImageFolder
from dualnet.data.mini_imagenet import MiniImageNet
from dualnet.data.procedural import Procedural
from dualnet.data.tiny_imagenet import TinyImageNet

BENCHMARKS: dict[str, type[BenchmarkConfig]] = {
    "procedural": Procedural,
    "image_folder": ImageFolder,
    "mini_imagenet": MiniImageNet,
    "core50": Core50,
    "cifar100": Cifar100,
    "tiny_imagenet": TinyImageNet,
}

__all__ = ["BENCHMARKS", "Benchmark", "BenchmarkConfig", "Examples", "Task"]
