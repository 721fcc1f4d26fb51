"""CIFAR-100 from Python batches and from folders gives the same benchmark; errors in either."""

import hashlib
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dualnet.data import cifar100
from dualnet.data.cifar100 import Cifar100

NAMES = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(100)]  # sorted, as the data set's are


def batch(per_class: int, seed: int) -> dict[str, Any]:
    """As the data set has it: rows of three planes, in no order of labels."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(100), per_class))
    pixels = random.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    pixels[:, 0] = labels  # the first red pixel
    return {b"data": pixels, b"fine_labels": labels.tolist(), b"coarse_labels": (labels // 5).tolist()}


BATCHES = {"train": batch(2, 0), "test": batch(1, 1), "meta": {b"fine_label_names": [name.encode() for name in NAMES]}}
FILES = {name: pickle.dumps(content, 2) for name, content in BATCHES.items()}


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {name: hashlib.md5(data).hexdigest() for name, data in FILES.items()}
    monkeypatch.setattr(cifar100, "PUBLISHED_MD5", digests)


def as_batches(root: Path) -> Path:
    (root / "cifar-100-python").mkdir(parents=True)
    for name, data in FILES.items():
        (root / "cifar-100-python" / name).write_bytes(data)
    return root


def as_folders(root: Path) -> Path:
    for part in ("train", "test"):
        rows = zip(BATCHES[part][b"data"], BATCHES[part][b"fine_labels"], strict=True)
        for number, (pixels, label) in enumerate(rows):
            path = root / part / NAMES[label] / f"{number:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.reshape(3, 32, 32).transpose(1, 2, 0)).save(path, compress_level=0)
    return root


@pytest.fixture
def config(tmp_path: Path) -> Cifar100:
    return Cifar100(str(as_batches(tmp_path / "cifar")), cache=str(tmp_path / "cache"))


def test_twenty_tasks_of_five_classes_in_order_of_their_names(config: Cifar100) -> None:
    benchmark = config.make()
    assert benchmark.class_names == tuple(NAMES) and len(benchmark.tasks) == 20
    assert benchmark.spec.image_shape == (3, 32, 32) and benchmark.spec.input_size is None
    for number, task in enumerate(benchmark.tasks):
        for part, per_class in ((task.train, 2), (task.test, 1)):
            assert part.labels.tolist() == np.repeat(np.arange(5 * number, 5 * number + 5), per_class).tolist()
            assert part.array[part.rows][:, 0, 0, 0].tolist() == part.labels.tolist()


@pytest.mark.parametrize("options", [{}, {"order_seed": 3, "num_tasks": 4, "input_size": 40}])
def test_batches_and_folders_make_the_same_benchmark(config: Cifar100, tmp_path: Path, options) -> None:
    from_batches = replace(config, **options).make()
    from_folders = replace(config, root=str(as_folders(tmp_path / "folders")), **options).make()
    assert from_batches.class_names == from_folders.class_names
    assert from_batches.spec.input_size == from_folders.spec.input_size == options.get("input_size")
    assert len(from_batches.tasks) == len(from_folders.tasks) == options.get("num_tasks", 20)
    for batch_task, folder_task in zip(from_batches.tasks, from_folders.tasks, strict=True):
        for a, b in ((batch_task.train, folder_task.train), (batch_task.test, folder_task.test)):
            assert np.array_equal(a.array[a.rows], b.array[b.rows])
            assert np.array_equal(a.labels, b.labels)


def test_the_folder_of_the_archive_itself_and_only_the_chosen_images(config: Cifar100, tmp_path: Path) -> None:
    array = config.make().tasks[0].train.array
    again = replace(config, order_seed=1, root=f"{config.root}/cifar-100-python").make()
    assert len(array) == 300 and np.array_equal(again.tasks[0].train.array, array)
    chosen = [replace(config, class_order=order, classes_per_task=1).make() for order in (["ad", "aa"], ["aa", "ad"])]
    first, second = (made.tasks[0].train.array for made in chosen)
    assert len(first) == 6 and np.array_equal(first, second)
    assert not (tmp_path / "cache").exists()


def evil(root: Path) -> None:
    """A pickle that makes a file when it is loaded."""
    (root / "cifar-100-python" / "meta").write_bytes(b"cbuiltins\nopen\n(S'touched'\nS'w'\ntR.")


MISTAKES: dict[str, tuple[Callable[[Path], object], dict[str, object], str]] = {
    "missing": (
        lambda root: None,
        {"root": "/nowhere"},
        r"/nowhere/meta: cannot be read \(No.*\); benchmark.root must hold cifar-100-python/ with the files train, "
        "test and meta, or the folders train/ and test/ with a sub-folder of images per class",
    ),
    "no-test": (lambda root: (root / "cifar-100-python" / "test").unlink(), {}, r"/test: cannot be read \(No such"),
    "other-file": (evil, {}, "/meta: is not the published file .*; unpack cifar-100-python again"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_explained(
    config: Cifar100, explained, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare, options, message = MISTAKES[kind]
    prepare(Path(config.root))
    explained(lambda: replace(config, **options).make(), message)
    assert not Path("touched").exists()


FOLDER_MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a-class-less": (lambda root: shutil.rmtree(root / "train" / "ab"), "/train: 99 classes, .* 100"),
    "other-test-classes": (lambda root: (root / "test" / "ab").rename(root / "test" / "xy"), "/test: .*/train: .*'ab'"),
    "empty-class": (lambda root: (root / "test" / "ab" / "empty").mkdir(), "/test/ab: no images"),
    "no-test": (lambda root: shutil.rmtree(root / "test"), r"/test: cannot be read as a folder \(No such file.*\);"),
}


@pytest.mark.parametrize("kind", FOLDER_MISTAKES)
def test_mistakes_in_folders_are_explained(tmp_path: Path, explained, kind: str) -> None:
    prepare, message = FOLDER_MISTAKES[kind]
    for part in ("train", "test"):
        for name in NAMES:
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / part / name / "0.png")
    if kind == "empty-class":
        (tmp_path / "test" / "ab" / "0.png").unlink()
    prepare(tmp_path)
    explained(Cifar100(str(tmp_path), cache=str(tmp_path / "cache")).make, message)
