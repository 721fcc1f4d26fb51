"""CORe50 from its folders: order of the objects, the test sessions, and errors in the folders."""

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from run_fixtures import result_of

from dualnet import cli, make_learner, reproduce
from dualnet.data.core50 import Core50
from dualnet.experiments.runner import BenchmarkCache, stream_of
from dualnet.reproduce.table_file import TableRow

FRAMES = 2


def fill(root: Path, numbers: Sequence[int], frames: int = FRAMES) -> Path:
    """Frames whose red is the object, green the session, blue the frame."""
    for session in range(1, 12):
        for number in numbers:
            folder = root / f"s{session}" / f"o{number}"
            folder.mkdir(parents=True)
            for frame in range(frames):
                image = Image.new("RGB", (4, 4), (number, session, frame))
                image.save(folder / f"C_{session:02d}_{number:02d}_{frame:03d}.png")
    return root


@pytest.fixture
def config(tmp_path: Path) -> Core50:
    """Objects 2 and 10 alone, one a task."""
    fill(tmp_path / "core50" / "core50_128x128", [2, 10])
    return Core50(
        str(tmp_path / "core50"),
        classes_per_task=1,
        class_order=["o2", "o10"],
        image_size=4,
        cache=str(tmp_path / "cache"),
    )


def colours(examples) -> np.ndarray:
    return examples.array[examples.rows][:, :, 0, 0]


def test_the_whole_tree_makes_ten_tasks_of_five_objects_in_order(tmp_path: Path) -> None:
    fill(tmp_path / "core50_128x128", range(1, 51), frames=1)
    benchmark = Core50(str(tmp_path), image_size=4, cache=str(tmp_path / "cache")).make()
    assert len(benchmark.tasks) == 10 and benchmark.spec.num_classes == 50
    assert benchmark.spec.input_size == 84
    assert benchmark.class_names[:6] == (*(f"plug_adapter{n}" for n in range(1, 6)), "mobile_phone1")
    assert benchmark.class_names[-5:] == tuple(f"remote_control{n}" for n in range(1, 6))
    for number, task in enumerate(benchmark.tasks):
        for part, sessions in ((task.train, {1, 2, 4, 5, 6, 8, 9, 11}), (task.test, {3, 7, 10})):
            red, green, _ = colours(part).T
            assert np.array_equal(red, part.labels + 1)
            assert set(red) == set(range(5 * number + 1, 5 * number + 6)) and set(green) == sessions
            assert len(part) == 5 * len(sessions)


def test_frames_come_in_order_and_objects_as_chosen(config: Core50) -> None:
    benchmark = config.make()
    assert benchmark.class_names == ("plug_adapter2", "mobile_phone5")
    test = colours(benchmark.tasks[1].test)
    assert test.tolist() == [[10, session, frame] for session in (3, 7, 10) for frame in range(FRAMES)]
    turned = replace(config, class_order=["o10", "o2"]).make()
    assert turned.class_names == ("mobile_phone5", "plug_adapter2")
    assert set(colours(turned.tasks[0].train)[:, 0]) == {10}


def test_the_documented_command_runs(config: Core50, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/benchmarks.md: its file and its command, with a small network and the two objects that are there."""
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
    (file,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    (command,) = re.findall(r"^dualnet (run core50.yaml --benchmark.root) ROOT (.*)$", page, re.M)
    monkeypatch.chdir(tmp_path)
    Path("core50.yaml").write_text(file)
    small = (
        f"--learner.encoder.width 2 --benchmark.image_size 4 --benchmark.input_size 28 --benchmark.cache {config.cache}"
    )
    chosen = "--benchmark.class_order [o2,o10] --benchmark.classes_per_task 1 --protocol task_free --device cpu"
    assert cli.main(f"{command[0]} {config.root} {command[1]} {small} {chosen}".split()) == 0
    result = result_of(Path("runs/core50/seed-0"))
    assert len(result["accuracy"]) == 2 and result["steps"] == 2


def frame(root: Path) -> Path:
    return root / "core50_128x128" / "s4" / "o10" / "C_04_10_001.png"


MISTAKES: dict[str, tuple[Callable[[Path], object], dict[str, object], str]] = {
    "missing": (
        lambda root: None,
        {"root": "/nowhere"},
        r"/nowhere/s1/o2: cannot be read as a folder \(No.*\); unpack core50_128x128.zip: benchmark.root must hold",
    ),
    "no-session": (
        lambda root: shutil.rmtree(root / "core50_128x128" / "s11"),
        {},
        "/s11/o2: cannot be read as a folder .*; unpack core50_128x128.zip: benchmark.root must hold the sessions",
    ),
    "no-images": (
        lambda root: [file.unlink() for file in frame(root).parent.iterdir()],
        {},
        "/s4/o10: no images .*; unpack",
    ),
    "wrong-session": (
        lambda root: frame(root).rename(frame(root).with_name("C_05_10_001.png")),
        {},
        r"/s4/o10/C_05_10_001.png: not one of C_04_10_\*.png; move it away, or unpack",
    ),
    "both-orders": (lambda root: None, {"order_seed": 1}, "class_order and order_seed"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_explained(config: Core50, explained, kind: str) -> None:
    prepare, options, message = MISTAKES[kind]
    prepare(Path(config.root))
    explained(lambda: replace(config, **options).make(), message)


ROWS = reproduce.select(reproduce.read_rows("all"), ["*/core50-*/*"])


@pytest.fixture(scope="module")
def benchmarks() -> BenchmarkCache:
    return BenchmarkCache()


@pytest.fixture(scope="module")
def all_objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("core50") / "core50_128x128", range(1, 51), frames=1).parent


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rows_of_the_papers_tables_learn_from_a_drawn_tree(
    row: TableRow, all_objects: Path, benchmarks: BenchmarkCache
) -> None:
    """Every row, with narrow networks: ten tasks of five objects, and the losses of a first batch are finite."""
    options = {
        "benchmark": {"root": str(all_objects), "cache": str(all_objects / "cache")},
        "learner": {"encoder": {"width": 2}},
    }
    experiment = row.experiment(options)
    stream = stream_of(experiment, benchmarks.get(experiment.benchmark), torch.device("cpu"))
    assert stream.class_mask.sum(dim=1).tolist() == [5] * 10 and len(ROWS) == 16
    learner = make_learner(experiment.learner_name, stream.spec, experiment.learner)
    losses = learner.observe(next(stream.batches(stream.periods[0], seed=0)))
    assert losses and all(loss.isfinite() for loss in losses.values())
