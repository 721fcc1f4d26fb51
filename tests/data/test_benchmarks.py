"""Contract: what every registered benchmark promises."""

import hashlib
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dualnet.data.benchmark import Benchmark, BenchmarkConfig, Examples
from dualnet.data.benchmarks import BENCHMARKS
from dualnet.data.cifar100 import Cifar100
from dualnet.data.core50 import Core50
from dualnet.data.image_folder import ImageFolder
from dualnet.data.mini_imagenet import MiniImageNet
from dualnet.data.procedural import Procedural
from dualnet.data.tiny_imagenet import TinyImageNet

PUBLISHED_MD5: dict[str, str] = {}  # of the drawn files of CIFAR-100


def picture(path: Path, number: int, size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, quality=95)


def image_folder(folder: Path) -> ImageFolder:
    for number in range(4 * 5):
        picture(folder / "images" / f"class-{number // 5}" / f"{number}.png", number)
    return ImageFolder(str(folder / "images"), classes_per_task=2, image_size=8, cache=str(folder / "cache"))


def mini_imagenet(folder: Path) -> MiniImageNet:
    for seed, lists, num_classes, part, per_class in (
        *((1000, "cl", 85, "train", 2), (2000, "cl", 85, "test", 1)),
        *((3000, "val", 15, "train", 2), (4000, "val", 15, "test", 1)),
    ):
        names = [f"images/{lists}-{part}-{number}.png" for number in range(num_classes * per_class)]
        for number, name in enumerate(names):
            picture(folder / name, seed + number)
        rows = [f"{name},{number // per_class}\n" for number, name in enumerate(names)]
        (folder / f"{lists}_{part}.csv").write_text("".join(rows))
    return MiniImageNet(str(folder), image_size=8, cache=str(folder / "cache"))


def procedural(folder: Path) -> Procedural:
    return Procedural(num_tasks=3, classes_per_task=2, train_per_class=4, test_per_class=2, image_size=16)


def core50(folder: Path) -> Core50:
    objects = ["o12", "o3", "o50", "o1"]
    for number in range(11 * len(objects)):
        session, name = number % 11 + 1, objects[number // 11]
        picture(folder / f"core50_128x128/s{session}/{name}/C_{session:02d}_{int(name[1:]):02d}_000.png", number)
    return Core50(
        str(folder), classes_per_task=2, class_order=objects, image_size=8, input_size=4, cache=str(folder / "cache")
    )


def cifar100(folder: Path) -> Cifar100:
    random = np.random.default_rng(0)
    contents = {
        part: {
            b"data": random.integers(0, 256, (100 * per_class, 3072), dtype=np.uint8),
            b"fine_labels": random.permutation(np.repeat(np.arange(100), per_class)).tolist(),
        }
        for part, per_class in (("train", 2), ("test", 1))
    }
    contents |= {"meta": {b"fine_label_names": [f"class {n:03d}".encode() for n in range(100)]}}
    (folder / "cifar-100-python").mkdir()
    for name, content in contents.items():
        data = pickle.dumps(content)
        (folder / "cifar-100-python" / name).write_bytes(data)
        PUBLISHED_MD5[name] = hashlib.md5(data).hexdigest()
    return Cifar100(str(folder), order_seed=0, cache=str(folder / "cache"))


def tiny_imagenet(folder: Path) -> TinyImageNet:
    root = folder / "tiny-imagenet-200"
    ids = [f"n{number:08d}" for number in range(200)]
    for number, name in enumerate(ids[:8]):
        for index in range(2):
            picture(root / "train" / name / "images" / f"{name}_{index}.JPEG", 3 * number + index)
        picture(root / "val" / "images" / f"val_{number}.JPEG", 3 * number + 2)
    lines = [f"val_{number}.JPEG\t{name}\t0\t0\t62\t62\n" for number, name in enumerate(ids[:8])]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(ids))
    (root / "words.txt").write_text("".join(f"{name}\tword {name}, other word\n" for name in ids))
    return TinyImageNet(str(folder), classes_per_task=4, class_order=ids[:8], image_size=8, cache=str(folder / "cache"))


SMALL = {
    "procedural": procedural,
    "image_folder": image_folder,
    "mini_imagenet": mini_imagenet,
    "core50": core50,
    "cifar100": cifar100,
    "tiny_imagenet": tiny_imagenet,
}


@pytest.fixture(scope="module", params=sorted(BENCHMARKS))
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BenchmarkConfig]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualnet.data.cifar100.PUBLISHED_MD5", PUBLISHED_MD5)
        made = SMALL[request.param](tmp_path_factory.mktemp(request.param))
        assert type(made) is BENCHMARKS[request.param]
        yield made


@pytest.fixture(scope="module", params=["make", "make_validation"])
def kind(request: pytest.FixtureRequest, config: BenchmarkConfig) -> str:
    if request.param == "make_validation" and type(config).make_validation is BenchmarkConfig.make_validation:
        pytest.skip("has no validation tasks")
    return request.param


@pytest.fixture(scope="module")
def benchmark(config: BenchmarkConfig, kind: str) -> Benchmark:
    return getattr(config, kind)()


def test_a_benchmark_says_what_it_is_for(benchmark: Benchmark, kind: str) -> None:
    assert benchmark.validation == (kind == "make_validation")


def test_no_validation_image_is_tested_on(config: BenchmarkConfig, benchmark: Benchmark, kind: str) -> None:
    if kind == "make":
        return
    tested = {image for task in config.make().tasks for image in pictures_of(task.test)}
    parts = [part for task in benchmark.tasks for part in (task.train, task.test)]
    assert tested and not tested & {image for part in parts for image in pictures_of(part)}


def pictures_of(part: Examples) -> list[bytes]:
    return [part.array[row].tobytes() for row in part.rows]


def test_a_benchmark_without_validation_tasks_says_so() -> None:
    class Plain(BenchmarkConfig):
        def make(self) -> Benchmark:
            raise NotImplementedError

    with pytest.raises(ValueError, match="benchmark: Plain "):
        Plain().make_validation()


def test_same_bits_every_time(config: BenchmarkConfig, kind: str, benchmark: Benchmark) -> None:
    again = getattr(config, kind)()
    assert torch.equal(again.spec.class_mask, benchmark.spec.class_mask)
    for new_task, task in zip(again.tasks, benchmark.tasks, strict=True):
        for a, b in ((new_task.train, task.train), (new_task.test, task.test)):
            assert all(torch.equal(x, y) for x, y in zip(a.load(), b.load(), strict=True))


def test_spec_is_that_of_the_tasks(benchmark: Benchmark) -> None:
    assert benchmark.spec.num_tasks == len(benchmark.tasks)
    assert benchmark.spec.num_classes == len(benchmark.class_names) == len(set(benchmark.class_names))
    assert benchmark.spec.class_mask.dtype == torch.bool
    for task in benchmark.tasks:
        images, labels = task.train.load()
        assert images.dtype == torch.uint8 and labels.dtype == torch.int64
        assert tuple(images.shape[1:]) == benchmark.spec.image_shape and images.shape[1] == 3


def test_a_task_has_exactly_the_classes_of_its_mask(benchmark: Benchmark) -> None:
    for task, mask in zip(benchmark.tasks, benchmark.spec.class_mask, strict=True):
        allowed = set(mask.nonzero().flatten().tolist())
        assert set(task.train.labels.tolist()) == set(task.test.labels.tolist()) == allowed
    assert benchmark.spec.class_mask.sum(dim=0).eq(1).all(), "every class belongs to one task"


def test_no_image_is_in_two_places(benchmark: Benchmark) -> None:
    parts = [part for task in benchmark.tasks for part in (task.train, task.test)]
    rows = np.concatenate([part.rows for part in parts])
    assert len(np.unique(rows)) == len(rows)
    assert all(part.array is parts[0].array for part in parts)
    assert len({image for part in parts for image in pictures_of(part)}) == len(rows)


def images_by_class(benchmark: Benchmark) -> dict[str, list[list[bytes]]]:
    """Training and test images of each class, in their order."""
    by_class: dict[str, list[list[bytes]]] = {name: [[], []] for name in benchmark.class_names}
    for task in benchmark.tasks:
        for side, part in enumerate((task.train, task.test)):
            for label, image in zip(part.labels.tolist(), pictures_of(part), strict=True):
                by_class[benchmark.class_names[label]][side].append(image)
    return by_class


def test_another_order_has_the_same_images_and_the_same_cache(config: Any, kind: str, benchmark: Benchmark) -> None:
    if getattr(config, "class_order", None) is not None:
        return  # it excludes order_seed
    cached = list(Path(config.cache).glob("*.npy")) if getattr(config, "cache", None) else []
    other = replace(config, order_seed=7)
    ordered = getattr(other, kind)()
    assert ordered.class_names != benchmark.class_names and ordered.split_digest == benchmark.split_digest
    assert torch.equal(ordered.spec.class_mask, benchmark.spec.class_mask)
    if kind == "make" and not isinstance(config, Procedural):  # there the background of a task changes the images
        assert images_by_class(ordered) == images_by_class(benchmark)
    assert not cached or list(Path(config.cache).glob("*.npy")) == cached
    by_seed = replace(config, order_seed="seed")
    assert by_seed.for_seed(7) == other and other.for_seed(3) is other
    with pytest.raises(ValueError, match=r"order_seed: seed needs the seed of a run; call for_seed\(0\), or give"):
        getattr(by_seed, kind)()
