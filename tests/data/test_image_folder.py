"""The user's image folder: its classes, tasks and test images; errors are one line."""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dualnet.data import image_cache
from dualnet.data.image_folder import ImageFolder


def fill(root: Path, classes: str = "abcd", per_class: int = 5, shade: int = 0) -> Path:
    """Class number c has images of red c; their green tells them apart."""
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for index in range(per_class):
            Image.new("RGB", (8, 8), (number, index, shade)).save(root / name / f"{index}.png")
    return root


@pytest.fixture
def config(tmp_path: Path) -> ImageFolder:
    root = fill(tmp_path / "images")
    return ImageFolder(str(root), classes_per_task=2, image_size=8, cache=str(tmp_path / "cache"))


def colours(examples) -> list[list[int]]:
    return examples.array[examples.rows][:, :, 0, 0].tolist()


def test_classes_are_folders_in_order_of_name(config: ImageFolder) -> None:
    benchmark = config.make()
    assert benchmark.class_names == ("a", "b", "c", "d")
    for task in benchmark.tasks:
        for part in (task.train, task.test):
            assert [red for red, _, _ in colours(part)] == part.labels.tolist()
        assert np.bincount(task.train.labels).max() == 4 and np.bincount(task.test.labels).max() == 1


def test_only_images_count(config: ImageFolder) -> None:
    root = Path(config.root)
    before = config.make()
    for name in ("a/.hidden.png", "a/notes.txt", "b/Thumbs.db", ".git/x.png", "README.md"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("no image")
    with pytest.warns(UserWarning, match=r"a/notes.txt and 1 more: .*\.bmp"):
        after = config.make()
    assert after.class_names == before.class_names
    assert np.array_equal(after.tasks[0].train.array, before.tasks[0].train.array)
    for name in ("a/notes.txt", "b/Thumbs.db"):
        (root / name).unlink()
    for name in ("LOUD.JPEG", "old.jfif", "older.jpe"):
        Image.new("RGB", (8, 8)).save(root / "a" / name, "JPEG")
    assert len(config.make().tasks[0].train.array) == len(before.tasks[0].train.array) + 3


@pytest.mark.parametrize("name", ["__MACOSX", "__pycache__", "@eaDir", ".ipynb_checkpoints"])
def test_folders_that_tools_leave_behind_are_no_classes(name: str, config: ImageFolder) -> None:
    (Path(config.root) / name).mkdir()
    (Path(config.root) / name / "0.png").write_text("no image")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert config.make().class_names == ("a", "b", "c", "d")
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (not name.startswith(".")) and all(f"/{name}: " in message for message in messages)


def test_an_empty_folder_is_named_before_the_tasks_are_counted(config: ImageFolder) -> None:
    (Path(config.root) / "e").mkdir()
    with pytest.raises(ValueError, match=f"^{config.root}/e: "):
        config.make()
    assert replace(config, class_order=["a", "b"]).make().class_names == ("a", "b")


@pytest.mark.parametrize(
    ("train", "test"), [("Training", "Test"), ("train", "val"), ("TRAIN", "testing"), ("train", None)]
)
def test_a_folder_of_splits_is_recognised(train: str, test: str | None, config: ImageFolder, tmp_path: Path) -> None:
    splits = tmp_path / "splits"
    for name in filter(None, (train, test)):
        fill(splits / name, per_class=2, shade=len(name))
    with pytest.raises(ValueError) as caught:
        replace(config, root=str(splits)).make()
    message = str(caught.value)
    assert f"give {splits / train} for training" in message and ("testing" in message[-8:]) == (test is not None)
    if test is not None:
        assert f"{splits / test} for testing" in message
        assert replace(config, root=str(splits / train), test_root=str(splits / test)).make().tasks


def test_classes_may_be_named_as_splits(config: ImageFolder, tmp_path: Path) -> None:
    fill(tmp_path / "vehicles" / "x", "a")
    (tmp_path / "vehicles" / "x" / "a").rename(tmp_path / "vehicles" / "train")
    (tmp_path / "vehicles" / "x").rmdir()
    fill(tmp_path / "vehicles", "c")
    assert replace(config, root=str(tmp_path / "vehicles")).make().class_names == ("c", "train")


def test_a_relative_root_is_relative_to_the_working_directory(
    config: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert np.array_equal(
        replace(config, root="images").make().tasks[0].train.array, config.make().tasks[0].train.array
    )
    with pytest.raises(ValueError, match=f"^gone: .*{tmp_path}/gone"):
        replace(config, root="gone").make()


def test_a_link_to_itself_is_no_class(config: ImageFolder) -> None:
    (Path(config.root) / "loop").symlink_to("loop")
    assert config.make().class_names == ("a", "b", "c", "d")


def test_names_that_are_no_text(config: ImageFolder) -> None:
    root, no_text = Path(config.root), os.fsdecode(b"caf\xe9")
    next((root / "a").glob("*.png")).rename(root / "a" / f"{no_text}.png")
    assert config.make().split_digest
    (root / "a").rename(root / no_text)
    with pytest.raises(ValueError, match=r"the name of the folder 'caf.udce9' is not UTF-8; rename it"):
        config.make()


def test_order_and_choice_of_classes(config: ImageFolder) -> None:
    chosen = replace(config, class_order=["d", "b"]).make()
    assert chosen.class_names == ("d", "b") and len(chosen.tasks) == 1
    assert colours(chosen.tasks[0].train)[0][0] == 3, "class number 0 is now d"
    assert replace(config, order_seed=1).make().class_names == ("c", "a", "d", "b")
    fewer = replace(config, classes_per_task=3, num_tasks=1).make()
    assert fewer.class_names == ("a", "b", "c") and len(fewer.tasks[0].train.array) == 15, "d is not even decoded"


def test_test_images_from_their_own_folder(config: ImageFolder, tmp_path: Path) -> None:
    test_root = fill(tmp_path / "test", per_class=2, shade=9)
    first = replace(config, test_root=str(test_root), input_size=4).make().tasks[0]
    assert {blue for _, _, blue in colours(first.train)} == {0} and {blue for _, _, blue in colours(first.test)} == {9}
    assert len(first.train) == 10 and len(first.test) == 4


def test_the_seed_chooses_what_is_held_out(config: ImageFolder) -> None:
    held = [colours(replace(config, split_seed=seed).make().tasks[0].test) for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]


def held(config: ImageFolder) -> set[tuple[str, int]]:
    """Class and number of each file that is tested."""
    made = config.make()
    return {
        (made.class_names[label], green)
        for task in made.tasks
        for label, (_, green, _) in zip(task.test.labels.tolist(), colours(task.test), strict=True)
    }


def test_the_order_of_the_classes_does_not_choose_what_is_held_out(config: ImageFolder) -> None:
    first = held(config)
    assert held(replace(config, order_seed=1)) == held(replace(config, class_order=["d", "c", "b", "a"])) == first
    assert held(replace(config, class_order=["b", "d"])) == {(name, file) for name, file in first if name in "bd"}


def test_new_files_leave_the_others_where_they_were(config: ImageFolder) -> None:
    config = replace(config, root=str(fill(Path(config.root).parent / "more", "ab", 20)), classes_per_task=2)
    before = held(config)
    for number in range(20, 25):
        Image.new("RGB", (8, 8), (0, number, 0)).save(Path(config.root) / "a" / f"{number}.png")
    after = held(config)
    assert {file for name, file in after if name == "b"} == {file for name, file in before if name == "b"}
    old, new = ({file for name, file in side if name == "a"} for side in (before, after))
    assert len(old) == 4 and len(new) == 5
    assert sum(file < 20 for file in new - old) <= 1, "one more is tested: at most one that was learned from"


def broken_image(root: Path) -> None:
    (root / "a" / "0.png").write_bytes(b"")


MISTAKES: dict[str, tuple[Callable[[Path], object], dict[str, object], str]] = {
    "no-root": (lambda root: None, {"root": ""}, "root: is empty"),
    "nul": (lambda root: None, {"root": "/no\0where"}, "cannot be read as a folder .*null"),
    "missing": (lambda root: None, {"root": "/nowhere"}, r"^/nowhere: .*\(No such file"),
    "no-classes": (lambda root: None, {"root": "{root}/a"}, "/a: the images of one class; did you mean "),
    "empty-class": (lambda root: (root / "e").mkdir(), {"num_tasks": 1, "classes_per_task": 5}, "/images/e: no images"),
    "size": (lambda root: None, {"image_size": 0}, "image_size: 0"),
    "input": (lambda root: None, {"input_size": 0}, "input_size: 0"),
    "one-image": (
        lambda root: fill(root, "z", 1),
        {"num_tasks": 1, "classes_per_task": 5},
        "'z' has no training images: its only image is held out for testing",
    ),
    "bad-image": (broken_image, {}, r"/a/0.png: unreadable image \(empty file\); replace it or leave it out"),
    "other-classes": (lambda root: fill(root.parent / "test", "abc"), {"test_root": "{root}/../test"}, "/test: .*'d'"),
    "same-root": (lambda root: None, {"test_root": "{root}/../images"}, "test_root is the same"),
    "no-test-root": (lambda root: None, {"test_root": "{root}/../gone"}, "/gone: cannot be read as a folder"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_explained(config: ImageFolder, explained, kind: str) -> None:
    prepare, options, message = MISTAKES[kind]
    prepare(Path(config.root))
    options = {k: v.format(root=config.root) if isinstance(v, str) else v for k, v in options.items()}
    explained(lambda: replace(config, **options).make(), message)


def spoil(root: Path) -> None:
    """Three of four kinds: an empty file, text, a link to nowhere."""
    broken_image(root)
    (root / "b" / "1.png").write_text("no image")
    (root / "c" / "2.png").unlink()
    (root / "c" / "2.png").symlink_to("nowhere")


def test_unreadable_images_are_left_out_as_if_they_were_not_there(
    config: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, skipping = Path(config.root), replace(config, on_error="skip")
    whole = skipping.make()
    spoil(root)
    with pytest.warns(UserWarning, match=r"^3 of 20 images unreadable: .*a/0.png .*; left out$"):
        benchmark = skipping.make()
    assert benchmark.split_digest != whole.split_digest
    sizes = [np.bincount(np.concatenate([task.train.labels, task.test.labels])) for task in benchmark.tasks]
    assert [size.tolist() for size in sizes] == [[4, 4], [0, 0, 4, 5]]
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="^3 of 20"):
        patch.setattr(image_cache, "read_image", None)  # which cannot be read was noted: nothing is decoded again
        assert skipping.make().split_digest == benchmark.split_digest
    for name in ("a/0.png", "b/1.png", "c/2.png"):
        (root / name).unlink()
    assert config.make().split_digest == benchmark.split_digest
    assert np.array_equal(config.make().tasks[0].train.array, benchmark.tasks[0].train.array)


def test_unreadable_images_of_a_test_folder(config: ImageFolder, tmp_path: Path) -> None:
    test_root = fill(tmp_path / "test", per_class=2, shade=9)
    broken_image(test_root)
    with pytest.warns(UserWarning, match=r"test/a/0.png: unreadable image \(empty file\); left out"):
        first = replace(config, test_root=str(test_root), on_error="skip").make().tasks[0]
    assert (len(first.train), len(first.test)) == (10, 3)


def test_a_class_that_cannot_be_read_at_all(config: ImageFolder) -> None:
    for file in (Path(config.root) / "b").iterdir():
        file.write_bytes(b"")
    with pytest.warns(UserWarning, match="5 of 20"), pytest.raises(ValueError, match="'b' has no training images"):
        replace(config, on_error="skip").make()


def test_validation_holds_some_of_the_training_images_out(config: ImageFolder, tmp_path: Path) -> None:
    """The first three tasks at most; where there is a test_root, none of its images."""
    fill(tmp_path / "more", "abcdefgh")
    benchmark, validation = config.make(), config.make_validation()
    assert len(validation.tasks) == 2
    for task, of_validation in zip(benchmark.tasks, validation.tasks, strict=True):
        both = colours(of_validation.train) + colours(of_validation.test)
        assert sorted(both) == sorted(colours(task.train)) and len(of_validation.test) == 2
    many = replace(config, root=str(tmp_path / "more"), test_root=str(fill(tmp_path / "test", "abcdefgh", 2, 9)))
    validation = many.make_validation()
    assert len(validation.tasks) == 3 and validation.class_names == tuple("abcdef")
    assert {blue for task in validation.tasks for _, _, blue in colours(task.train) + colours(task.test)} == {0}
    assert sum(len(task.train) + len(task.test) for task in validation.tasks) == 6 * 5


def test_validation_needs_two_training_images_of_a_class(config: ImageFolder) -> None:
    for number in range(1, 4):
        (Path(config.root) / "b" / f"{number}.png").unlink()
    config.make()
    with pytest.raises(ValueError, match="class 'b' has 1 training images"):
        config.make_validation()
