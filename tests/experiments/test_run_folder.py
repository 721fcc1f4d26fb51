"""The run folder: complete from the start, for one process and one experiment."""

import dataclasses
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from commands import names_in
from run_fixtures import CPU

from dualnet.data.benchmark import Benchmark
from dualnet.experiments.experiment import Experiment
from dualnet.experiments.manifest import manifest_of
from dualnet.experiments.run_folder import RunFolder, pixels_digest
from dualnet.files import read_yaml
from dualnet.machine import cpu_name


@pytest.fixture
def folder(tmp_path: Path, tiny: Callable[..., Experiment], benchmark: Benchmark) -> Iterator[RunFolder]:
    made = RunFolder(tmp_path / "out" / "seed-0")
    with made.locked():
        made.prepare(tiny(), benchmark, CPU)
        yield made


def test_experiment_yaml_is_complete(folder: RunFolder, tiny, benchmark: Benchmark) -> None:
    content = read_yaml(folder.experiment_file)
    stream, environment = content.pop("stream"), content.pop("environment")
    assert content.pop("manifest") == manifest_of(tiny(), benchmark)
    assert content == tiny().mapping() == folder.record.experiment, "every option, defaults written out"
    assert stream == {
        "image_shape": [3, 28, 28],
        "input_size": None,
        "class_names": list(benchmark.class_names),
        "tasks": [[0, 1], [2, 3]],
        "train_sizes": [12, 12],
        "test_sizes": [4, 4],
        "pixels": pixels_digest(benchmark),
    }
    assert environment["torch"] == torch.__version__ and environment["python"] == platform.python_version()
    assert (environment["device"], environment["hardware"], environment["threads"]) == ("cpu", cpu_name(), 1)
    assert environment["dualnet"] and environment["platform"]
    assert folder.record.experiment == tiny().mapping()


def test_a_folder_is_there_as_a_whole(folder: RunFolder) -> None:
    assert names_in(folder.path) == ["experiment.yaml", "lock"]
    assert not folder.finished
    folder.result_file.write_text('{"accuracy": [[50.0]]}')
    assert folder.finished


def test_the_same_experiment_takes_the_folder_over(folder: RunFolder, tiny, benchmark: Benchmark) -> None:
    before = folder.experiment_file.read_bytes()
    (folder.path / "result.json.77.tmp").write_text("half")
    folder.prepare(tiny(), benchmark, CPU)
    assert folder.experiment_file.read_bytes() == before
    assert names_in(folder.path) == ["experiment.yaml", "lock"], "half-written files are deleted"


def test_a_folder_that_was_only_just_made_is_taken_over(tmp_path: Path, tiny, benchmark: Benchmark) -> None:
    """A process that died before experiment.yaml leaves an empty folder with a lock that nobody holds."""
    (tmp_path / "lock").write_text("")
    folder = RunFolder(tmp_path)
    with folder.locked():
        folder.prepare(tiny(), benchmark, CPU)
    assert folder.record.experiment == tiny().mapping()


def test_two_cannot_have_one_folder(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "seed-0"), RunFolder(tmp_path / "seed-0")
    with first.locked(), pytest.raises(ValueError, match=r"seed-0: another process is running here; .* --out"):
        second.locked().__enter__()
    with second.locked(), pytest.raises(ValueError, match="seed-0: another process"):
        first.locked().__enter__()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"seed": 4}, r"seed is 0 there, 4 here\)"),
        ({"batch_size": 2}, r"batch_size is 4 there, 2 here\)"),
        ({"learner": {"memory": {"policy": "reservoir"}}}, "learner.memory.policy is auto there, reservoir here"),
        ({"learner": {"views": {"crop_area": [0.5, 1.0]}}}, "learner.views.crop_area is .0.4307, 0.4307. there"),
        ({"learner": "er"}, r"learner.name is dualnet there, er here and \d+ more"),
        ({"benchmark": {"seed": 1}}, "benchmark.seed is 0 there, 1 here"),
    ],
)
def test_another_experiment_is_refused(change, line, folder: RunFolder, tiny) -> None:
    with pytest.raises(ValueError, match=rf"seed-0: holds another experiment \(.*{line}.*; choose another --out"):
        folder.check_same(tiny(**change))


def test_other_images_are_refused(folder: RunFolder, tiny, benchmark: Benchmark) -> None:
    """Same options, but a file came or went in the user's folder: the stream is another one."""
    task = benchmark.tasks[0]
    train = dataclasses.replace(task.train, rows=task.train.rows[:-1], labels=task.train.labels[:-1])
    fewer = dataclasses.replace(benchmark, tasks=[dataclasses.replace(task, train=train), benchmark.tasks[1]])
    renamed = dataclasses.replace(benchmark, class_names=("a", "b", "c", "d"))
    moved = dataclasses.replace(benchmark, split_digest="of a file with a new name")
    for other in (fewer, renamed, moved):
        with pytest.raises(ValueError, match="other images or classes"):
            folder.check_same_stream(tiny(), other)


def test_a_folder_without_experiment_yaml(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no checkpoint that can be read; give the folder of a run"):
        _ = RunFolder(tmp_path).record
    with pytest.raises(ValueError, match=r"/missing: does not exist; give .*runs/NAME/seed-0 or models/mine$"):
        _ = RunFolder(tmp_path / "missing").record


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"file/seed-0: cannot be made \(Not a directory\); choose another --out"):
        RunFolder(tmp_path / "file" / "seed-0").locked().__enter__()
    assert (tmp_path / "file").read_text() == "mine"


def test_class_names_of_any_script_are_written_readably(tmp_path: Path, tiny, benchmark: Benchmark) -> None:
    names = ("na\u00efve", "\u732b", "yes", "1")
    folder = RunFolder(tmp_path)
    folder.prepare(tiny(), dataclasses.replace(benchmark, class_names=names), CPU)
    text = folder.experiment_file.read_text(encoding="utf-8")
    assert "\u732b" in text and tuple(yaml.safe_load(text)["stream"]["class_names"]) == names
