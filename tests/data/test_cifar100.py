"""CIFAR-100 from Python batches and from folders gives the same benchmark; errors in either."""

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dualnet.data.cifar100 import Cifar100

NAMES = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(100)]  # sorted, as the data set's are


def batch(per_class: int, seed: int) -> dict[str, Any]:
    """As the data set has it: rows of three planes, in no order of labels."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(100), per_class))
    pixels = random.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    pixels[:, 0] = labels  # the first red pixel
    return {"data": pixels, "fine_labels": labels.tolist(), "coarse_labels": (labels // 5).tolist()}


BATCHES = {"train": batch(2, 0), "test": batch(1, 1), "meta": {"fine_label_names": NAMES}}


def as_batches(root: Path, protocol: int = 2) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for name, content in BATCHES.items():
        (folder / name).write_bytes(pickle.dumps(content, protocol))
    return root


def as_folders(root: Path) -> Path:
    for part in ("train", "test"):
        rows = zip(BATCHES[part]["data"], BATCHES[part]["fine_labels"], strict=True)
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
    for one, other in zip(from_batches.tasks, from_folders.tasks, strict=True):
        for a, b in ((one.train, other.train), (one.test, other.test)):
            assert np.array_equal(a.array[a.rows], b.array[b.rows])
            assert np.array_equal(a.labels, b.labels)


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    root = as_batches(tmp_path, protocol)
    first = Cifar100(str(root), cache=str(tmp_path / "cache")).make().tasks[0].train
    by_label = np.argsort(BATCHES["train"]["fine_labels"], kind="stable")
    expected = BATCHES["train"]["data"][by_label[:10]].reshape(-1, 3, 32, 32)
    assert np.array_equal(first.array[first.rows], expected)


def test_choice_and_order_of_classes(config: Cifar100) -> None:
    benchmark = replace(config, class_order=["ad", "aa", "ac"], classes_per_task=1, num_tasks=2).make()
    assert benchmark.class_names == ("ad", "aa")
    first, second = (task.train for task in benchmark.tasks)
    assert first.labels.tolist() == [0, 0] and first.array[first.rows][:, 0, 0, 0].tolist() == [3, 3]
    assert second.labels.tolist() == [1, 1] and second.array[second.rows][:, 0, 0, 0].tolist() == [0, 0]


def test_the_folder_of_the_archive_itself_and_only_the_chosen_images(config: Cifar100, tmp_path: Path) -> None:
    array = config.make().tasks[0].train.array
    again = replace(config, order_seed=1, root=f"{config.root}/cifar-100-python").make()
    assert len(array) == 300 and np.array_equal(again.tasks[0].train.array, array)
    chosen = [replace(config, class_order=order, classes_per_task=1).make() for order in (["ad", "aa"], ["aa", "ad"])]
    one, other = (made.tasks[0].train.array for made in chosen)
    assert len(one) == 6 and np.array_equal(one, other)
    assert not (tmp_path / "cache").exists()


class Evil:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def spoil(name: str, **changes: Any) -> Callable[[Path], object]:
    def apply(root: Path) -> None:
        (root / "cifar-100-python" / name).write_bytes(pickle.dumps({**BATCHES[name], **changes}))

    return apply


def write(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda root: (root / "cifar-100-python" / name).write_bytes(data)


def pipe(root: Path) -> None:
    (root / "cifar-100-python" / "train").unlink()
    os.mkfifo(root / "cifar-100-python" / "train")


def cut(root: Path) -> None:
    file = root / "cifar-100-python" / "train"
    file.write_bytes(file.read_bytes()[:-1000])


MISTAKES: dict[str, tuple[Callable[[Path], object], dict[str, object], str]] = {
    "missing": (
        lambda root: None,
        {"root": "/nowhere"},
        r"/nowhere/meta: cannot be read \(No.*\); benchmark.root must hold cifar-100-python/ with the files train, "
        "test and meta, or the folders train/ and test/ with a sub-folder of images per class",
    ),
    "no-test": (lambda root: (root / "cifar-100-python" / "test").unlink(), {}, r"/test: cannot be read \(No such"),
    "cut": (cut, {}, r"/train: not a batch of images \(.*truncated.*\); benchmark.root must hold"),
    "pipe": (pipe, {}, r"/train: .*\(not a regular file\); benchmark.root must hold"),
    "empty": (write("train", b""), {}, r"/train: not a batch of images \(Ran out of input\); benchmark.root"),
    "text": (write("meta", b"hello"), {}, r"/meta: not a batch of images \(.*\); benchmark.root"),
    "a-list": (write("test", pickle.dumps([1])), {}, r"/test: .*benchmark.root"),
    "other-key": (write("test", pickle.dumps({1: 2})), {}, r"/test: .*benchmark.root"),
    "no-data": (spoil("train", data=None), {}, "/train: data .*3072 bytes"),
    "grey": (spoil("train", data=np.zeros((200, 1024), np.uint8)), {}, "/train: data .*3072"),
    "floats": (spoil("train", data=np.zeros((200, 3072), np.float32)), {}, r"/train: .*'f4'.*; benchmark.root"),
    "objects": (spoil("train", data=np.array([None, "x"])), {}, r"/train: .*'O8'"),
    "cifar10": (spoil("train", fine_labels=None), {}, "/train: fine_labels .*0 to 99"),
    "label": (spoil("test", fine_labels=[*range(99), 100]), {}, "/test: fine_labels .*0 to 99"),
    "few-labels": (spoil("test", fine_labels=[0] * 99), {}, "/test: 100 images, but 99 labels; unpack"),
    "one-side": (spoil("test", fine_labels=[0] * 100), {}, r"'ab' has no test images \(and 98 more classes\)"),
    "no-names": (write("meta", pickle.dumps({})), {}, "/meta: no list fine_label_names; unpack"),
    "odd-names": (spoil("meta", fine_label_names=[1] * 100), {}, "/meta: no list fine_label_names; unpack"),
    "twice": (spoil("meta", fine_label_names=["a"] * 100), {}, "/meta: 100 classes, 1 of them different"),
    "fewer-classes": (spoil("meta", fine_label_names=NAMES[:60]), {}, "/meta: 60 classes, .* 100; .*image_folder"),
    "order": (lambda root: None, {"class_order": ["zz"]}, "class_order names 'zz', .* aa"),
    "too-many": (lambda root: None, {"num_tasks": 21}, "21 tasks of 5 .*num_tasks"),
    "input": (lambda root: None, {"input_size": 0}, "input_size: 0"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_explained(config: Cifar100, explained, kind: str) -> None:
    prepare, options, message = MISTAKES[kind]
    prepare(Path(config.root))
    explained(lambda: replace(config, **options).make(), message)


FOLDER_MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a-class-less": (lambda root: shutil.rmtree(root / "train" / "ab"), "/train: 99 classes, .* 100"),
    "other-test-classes": (lambda root: (root / "test" / "ab").rename(root / "test" / "xy"), "/test: .*/train: .*'ab'"),
    "empty-class": (lambda root: (root / "test" / "ab" / "empty").mkdir(), "/test/ab: no images"),
    "no-test": (lambda root: shutil.rmtree(root / "test"), r"/test: cannot be read as a folder \(No such file.*\);"),
    "bad-image": (
        lambda root: (root / "train" / "ab" / "0.png").write_bytes(b""),
        r"/train/ab/0.png: unreadable image \(empty file\); replace it",
    ),
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


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_nothing_that_a_file_names_is_called(config: Cifar100, tmp_path: Path, name: str, protocol: int) -> None:
    file = Path(config.root) / "cifar-100-python" / name
    content = {**BATCHES[name], "other": Evil(tmp_path / "touched")}
    file.write_bytes(pickle.dumps(content, protocol))
    with pytest.raises(ValueError, match=rf"/{name}: .* not allowed"):
        config.make()
    assert not (tmp_path / "touched").exists()
    assert pickle.loads(file.read_bytes()) and (tmp_path / "touched").exists(), "plain pickle does call it"
