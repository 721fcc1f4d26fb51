"""Split miniImageNet from its lists: order of the labels, and errors in a list."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from dualnet.data.mini_imagenet import MiniImageNet


def write(root: Path, prefix: str, labels: range) -> None:
    """One training and one test image per label, labels in falling order; the red of an image is its label."""
    (root / "images").mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        rows = []
        for label in reversed(labels):
            name = f"images/{prefix}-{part}-{label}.png"
            Image.new("RGB", (8, 8), (label, part == "test", 0)).save(root / name)
            rows.append(f"{name},{label}\n")
        (root / f"{prefix}_{part}.csv").write_text("".join(rows))


@pytest.fixture
def config(tmp_path: Path) -> MiniImageNet:
    write(tmp_path / "mini", "val", range(15))
    return MiniImageNet(str(tmp_path / "mini"), image_size=8, cache=str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("make", "prefix", "first", "num_tasks"),
    [(MiniImageNet.make, "cl", 15, 17), (MiniImageNet.make_validation, "val", 0, 3)],
)
def test_tasks_follow_the_labels(tmp_path: Path, make, prefix: str, first: int, num_tasks: int) -> None:
    write(tmp_path, prefix, range(first, first + 5 * num_tasks))
    benchmark = make(MiniImageNet(str(tmp_path), image_size=8, cache=str(tmp_path / "cache"), input_size=32))
    assert len(benchmark.tasks) == num_tasks and benchmark.spec.input_size == 32
    assert benchmark.class_names == tuple(str(label) for label in range(first, first + 5 * num_tasks))
    for number, task in enumerate(benchmark.tasks):
        for is_test, part in enumerate((task.train, task.test)):
            assert part.labels.tolist() == list(range(5 * number, 5 * number + 5))
            colours = part.array[part.rows][:, :2, 0, 0].tolist()
            assert colours == [[first + label, is_test] for label in part.labels]


def test_validation_classes_can_make_more_tasks(config: MiniImageNet) -> None:
    benchmark = replace(config, validation_classes_per_task=1).make_validation()
    assert [task.test.load()[1].tolist() for task in benchmark.tasks] == [[label] for label in range(15)]
    assert [image.load()[0][0, 0, 0, 0].item() for image in (task.train for task in benchmark.tasks)] == list(range(15))


def test_windows_line_ends_blank_lines_and_a_byte_order_mark(config: MiniImageNet) -> None:
    before = config.make_validation().tasks[0].train.rows.tolist()
    file = Path(config.root) / "val_train.csv"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    assert config.make_validation().tasks[0].train.rows.tolist() == before


def edit(name: str, change: Callable[[list[str]], list[str]]) -> Callable[[Path], object]:
    def apply(root: Path) -> None:
        lines = (root / name).read_text().splitlines()
        (root / name).write_text("\n".join(change(lines)))

    return apply


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no-list": (
        lambda root: (root / "val_test.csv").unlink(),
        r"/val_test.csv: cannot be read \(No such.*\); benchmark.root must hold the lists cl_train.csv and cl_test.csv",
    ),
    "no-rows": (edit("val_train.csv", lambda rows: []), "/val_train.csv: names no images; write rows `path,label`"),
    "not-text": (
        lambda root: (root / "val_train.csv").write_bytes(b"\xff\xfe\x00,\x80"),
        "/val_train.csv: .*UTF-8: byte 0.*`path,label`",
    ),
    "missing-image": (
        lambda root: (root / "images" / "val-train-12.png").unlink(),
        "/val_train.csv, line 3: .*/images/val-train-12.png is missing; unpack the images there or correct the row",
    ),
    "label": (
        edit("val_test.csv", lambda rows: [*rows[:4], rows[4] + "x", *rows[5:]]),
        "/val_test.csv, line 5: '.*,10x' is not `path,label`",
    ),
    "heading": (edit("val_test.csv", lambda rows: ["file,label", *rows]), "line 1: 'file,label' is not `path,label`"),
    "one-column": (edit("val_test.csv", lambda rows: [*rows, "images/a.png"]), "line 16: '.*' is not `path,label`"),
    "too-few-classes": (
        lambda root: [edit(f"val_{part}.csv", lambda rows: rows[:-1])(root) for part in ("train", "test")],
        "/val_train.csv: 14 classes, .* 15; .*image_folder",
    ),
    "only-in-train": (edit("val_test.csv", lambda rows: rows[1:]), "class '14' has no test images; add some"),
    "in-both": (
        lambda root: (root / "val_test.csv").write_bytes((root / "val_train.csv").read_bytes()),
        "/val_test.csv: .*/val-train-0.png is also in val_train.csv; keep training and test images apart",
    ),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_explained(config: MiniImageNet, explained, kind: str) -> None:
    prepare, message = MISTAKES[kind]
    prepare(Path(config.root))
    explained(config.make_validation, message)


def test_results_come_from_the_continual_split_alone(config: MiniImageNet) -> None:
    with pytest.raises(ValueError, match=r"split: .*'validation'.*continual"):
        replace(config, split="validation")
