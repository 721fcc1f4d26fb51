"""The registry of benchmarks by name. Benchmarks outside the package are given by their import path."""

from dualnet.data.benchmark import BenchmarkConfig
from dualnet.data.cifar100 import Cifar100
from dualnet.data.core50 import Core50
from dualnet.data.image_folder import ImageFolder
from dualnet.data.mini_imagenet import MiniImageNet
from dualnet.data.procedural import Procedural
from dualnet.data.tiny_imagenet import TinyImageNet
from dualnet.lookup import find_class

BENCHMARKS: dict[str, type[BenchmarkConfig]] = {
    "procedural": Procedural,
    "image_folder": ImageFolder,
    "mini_imagenet": MiniImageNet,
    "core50": Core50,
    "cifar100": Cifar100,
    "tiny_imagenet": TinyImageNet,
}


def benchmark_class(name: str) -> type[BenchmarkConfig]:
    """The options of that benchmark, or the class at an import path such as `my_package.my_module.MyBenchmark`."""
    return find_class(name, BENCHMARKS, BenchmarkConfig, "benchmark.name")
