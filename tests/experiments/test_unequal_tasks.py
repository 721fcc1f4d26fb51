"""Tasks of unequal size: every learner, under every protocol that it knows, from the images to the report."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from commands import class_folders
from run_fixtures import CPU, result_of

import dualnet
from dualnet import cli
from dualnet.data.image_folder import ImageFolder
from dualnet.experiments import runner
from dualnet.experiments.experiment import parse
from dualnet.learners import LEARNERS

CLASSES = {"a": 4, "b": 7, "c": 5, "d": 4, "e": 9}  # images of each: tasks of two, two and one class
CASES = [*((name, "task_aware") for name in LEARNERS), *((name, "task_free_boundaries") for name in ("er", "dualnet"))]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    folder = tmp_path_factory.mktemp("unequal")
    for seed, (name, count) in enumerate(CLASSES.items()):
        class_folders([name], count, folder / "images", 100 * seed)
    return ImageFolder(str(folder / "images"), classes_per_task=2, image_size=28, cache=str(folder / "cache"))


@pytest.mark.parametrize(("learner", "protocol"), CASES)
@pytest.mark.filterwarnings("ignore:benchmark.classes_per_task")
def test_every_learner(learner: str, protocol: str, quick_tiny, images: ImageFolder, tmp_path: Path) -> None:
    experiment = dataclasses.replace(
        quick_tiny(learner, protocol=protocol), benchmark=images, benchmark_name="image_folder", batch_size=5
    )
    runner.run({tmp_path / "seed-0": experiment}, CPU)
    result = result_of(tmp_path / "seed-0")
    assert len(result["accuracy"]) == 3 and 0 <= result["metrics"]["ACC"] <= 100
    stored = yaml.safe_load((tmp_path / "seed-0" / "experiment.yaml").read_text())
    assert stored["stream"]["tasks"] == [[0, 1], [2, 3], [4]]
    assert parse({key: stored[key] for key in experiment.mapping()}) == experiment, "it could be resumed"
    model, file = dualnet.load(tmp_path / "seed-0", trust=True), Path(images.root) / "e" / "0.png"
    if protocol == "task_aware":
        assert result["accuracy"][2][2] == 100.0, "the task names its only class"
        assert [set(model.predict(file, task)[0].classes) for task in range(3)] == [{"a", "b"}, {"c", "d"}, {"e"}]
    else:
        assert set(model.predict(file)[0].classes) == set(CLASSES)
    if learner == "er":  # the report knows no learner
        assert cli.main(["report", str(tmp_path)]) == 0


def test_validation_tasks(images: ImageFolder) -> None:
    assert images.make_validation().spec.class_mask.sum(dim=1).tolist() == [2, 2, 1]
    listed = dataclasses.replace(images, classes_per_task=(1, 1, 1, 2)).make_validation()
    assert listed.class_names == ("a", "b", "c")
