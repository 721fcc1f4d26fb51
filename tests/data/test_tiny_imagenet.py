"""Tiny ImageNet from its archive: ids, names, test images by annotation, and errors in the files."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from dualnet.data.tiny_imagenet import TinyImageNet

IDS = [f"n{9 * number:08d}" for number in range(200)]
USED = 20  # ids with images


def fill(root: Path, used: int = USED) -> Path:
    """Class number c has two images of red 12 c for training, and one with a green 99 for testing."""
    (root / "val" / "images").mkdir(parents=True)
    lines = []
    for number, name in enumerate(IDS[:used]):
        (root / "train" / name / "images").mkdir(parents=True)
        (root / "train" / name / f"{name}_boxes.txt").touch()
        for index in range(2):
            Image.new("RGB", (4, 4), (12 * number % 256, index, 0)).save(
                root / "train" / name / "images" / f"{name}_{index}.JPEG"
            )
        test = f"val_{used - number}.JPEG"
        Image.new("RGB", (4, 4), (12 * number % 256, 99, 0)).save(root / "val" / "images" / test)
        lines.append(f"{test}\t{name}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(reversed(lines)))
    (root / "wnids.txt").write_text("\n".join(reversed(IDS)))
    words = [f"{name}\tword{number}, second word\n" for number, name in enumerate(IDS)]
    (root / "words.txt").write_text("n00000001\tentity\n" + "".join(words))
    return root


@pytest.fixture
def config(tmp_path: Path) -> TinyImageNet:
    fill(tmp_path / "tiny" / "tiny-imagenet-200")
    return TinyImageNet(str(tmp_path / "tiny"), num_tasks=2, image_size=4, cache=str(tmp_path / "cache"))


def colours(examples) -> list[list[int]]:
    return examples.array[examples.rows][:, :2, 0, 0].tolist()


def test_tasks_of_ten_in_order_of_the_ids(config: TinyImageNet) -> None:
    benchmark = config.make()
    assert len(benchmark.tasks) == 2
    assert benchmark.class_names == tuple(f"word{number}" for number in range(20))
    for number, task in enumerate(benchmark.tasks):
        classes = range(10 * number, 10 * number + 10)
        assert task.train.labels.tolist() == [label for label in classes for _ in range(2)]
        assert sorted(task.test.labels.tolist()) == list(classes)
        for part, of_test in ((task.train, False), (task.test, True)):
            for (red, green), label in zip(colours(part), part.labels, strict=True):
                assert round(red / 12) == label and (green > 50) == of_test  # JPEG is not exact


def test_all_two_hundred_classes_are_twenty_tasks(tmp_path: Path) -> None:
    fill(tmp_path, used=200)
    benchmark = TinyImageNet(str(tmp_path), image_size=4, cache=str(tmp_path / "cache")).make()
    assert len(benchmark.tasks) == 20 and len(benchmark.class_names) == 200


def test_choice_of_classes_and_words_that_two_share(config: TinyImageNet) -> None:
    words = Path(config.root) / "tiny-imagenet-200" / "words.txt"
    words.write_text(words.read_text().replace("word3,", "crane,").replace("word5,", "crane,"))
    chosen = replace(config, class_order=[IDS[5], IDS[1], IDS[3]], classes_per_task=3, num_tasks=None).make()
    assert chosen.class_names == (f"crane ({IDS[5]})", "word1", f"crane ({IDS[3]})")
    assert [round(red / 12) for red, _ in colours(chosen.tasks[0].test)] == [5, 1, 3]
    alone = replace(config, class_order=[IDS[5]], classes_per_task=1, num_tasks=None).make()
    assert alone.class_names == ("crane",)


def test_blank_lines_and_quotes_in_the_lists(config: TinyImageNet) -> None:
    root = Path(config.root) / "tiny-imagenet-200"
    for name in ("wnids.txt", "words.txt", "val/val_annotations.txt"):
        (root / name).write_text("\n \t\n" + (root / name).read_text().replace("word3,", '"word3,') + "\n  \r\n")
    assert config.make().class_names[2:5] == ("word2", '"word3', "word4")


def edit(name: str, change: Callable[[str], str]) -> Callable[[Path], object]:
    return lambda root: (root / name).write_text(change((root / name).read_text()))


MISTAKES: dict[str, tuple[Callable[[Path], object], dict[str, object], str]] = {
    "missing": (
        lambda root: None,
        {"root": "/nowhere"},
        r"/nowhere/wnids.txt: cannot be read \(No such.*\); unpack tiny-imagenet-200.zip: benchmark.root must hold",
    ),
    "no-words": (lambda root: (root / "words.txt").unlink(), {}, r"/words.txt: cannot be read \(No such file"),
    "no-val": (lambda root: shutil.rmtree(root / "val"), {}, "/val/images: cannot be read as a folder .*; unpack"),
    "not-text": (
        lambda root: (root / "words.txt").write_bytes(b"n1\t\xff"),
        {},
        r"/words.txt: .*\(not UTF-8: byte 3\); unpack",
    ),
    "fewer-ids": (edit("wnids.txt", lambda text: text[:-10]), {}, "/wnids.txt: 199 classes, 199 .*200; .*image_folder"),
    "no-word": (
        edit("words.txt", lambda text: text.replace(f"{IDS[4]}\t", f"{IDS[4]} ")),
        {},
        f"/words.txt: no word for {IDS[4]}",
    ),
    "no-class-folder": (
        lambda root: shutil.rmtree(root / "train" / IDS[7]),
        {},
        rf"/train/{IDS[7]}/images: cannot be read as a folder \(No such file",
    ),
    "annotation": (
        edit("val/val_annotations.txt", lambda text: text.replace("\t", " ")),
        {},
        "/val_annotations.txt, line 1: .*wnids.txt",
    ),
    "unknown-id": (
        edit("val/val_annotations.txt", lambda text: text.replace(IDS[17], "n1")),
        {},
        "/val_annotations.txt, line 3: not `image<tab>id` with an id of wnids.txt",
    ),
    "missing-test-image": (
        lambda root: (root / "val" / "images" / "val_2.JPEG").unlink(),
        {},
        "/val_annotations.txt, line 2: .*/val/images/val_2.JPEG is missing; unpack the images there",
    ),
    "an-image-outside": (
        edit("val/val_annotations.txt", lambda text: text.replace("val_2.JPEG", f"../../train/{IDS[0]}/x.JPEG")),
        {},
        "/val_annotations.txt, line 2: .* is missing",
    ),
    "named-twice": (
        edit("val/val_annotations.txt", lambda text: text + text),
        {},
        "/val_annotations.txt, line 21: .*/val_1.JPEG is named twice; remove a line",
    ),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_explained(config: TinyImageNet, explained, kind: str) -> None:
    prepare, options, message = MISTAKES[kind]
    prepare(Path(config.root) / "tiny-imagenet-200")
    explained(lambda: replace(config, **options).make(), message)
