"""The accuracy of a model on test images, in Python and by `dualnet evaluate`."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dualnet
from dualnet import Model
from dualnet.cli import main, show_warning
from dualnet.learners.shared_options import EncoderOptions
from dualnet.report.cells import DASH

COLOURS = {"red": (250, 0, 0), "green": (0, 250, 0), "blue": (0, 0, 250)}
SMALL = {"name": "er", "encoder": {"width": 4}, "updates": 5}


def pictures(name: str, count: int) -> list[Image.Image]:
    """Of one colour, with noise."""
    noise = np.random.default_rng(0).integers(0, 6, (count, 28, 28, 3))
    return [Image.fromarray((np.array(COLOURS[name]) + pixels).astype(np.uint8)) for pixels in noise]


def write(folder: str, **classes: tuple[str, int]) -> None:
    """Sub-folders, each with a number of images of a colour."""
    for name, (colour, count) in classes.items():
        Path(folder, name).mkdir(parents=True)
        for number, picture in enumerate(pictures(colour, count)):
            picture.save(Path(folder, name, f"{number}.png"))


@pytest.fixture(scope="module")
def trained() -> Model:
    """Tells three colours apart."""
    torch.set_num_threads(1)
    model = Model.create([*COLOURS], image_size=28, learner=SMALL)
    images = [picture for both in zip(*(pictures(name, 20) for name in COLOURS), strict=True) for picture in both]
    model.learn(images, [*COLOURS] * 20)
    return model


@pytest.fixture(autouse=True)
def here(trained: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("warnings.showwarning", show_warning)
    trained.save("model")


def test_accuracy_confusions_and_thresholds_are_those_of_the_predictions(trained: Model) -> None:
    images = [*pictures("red", 4), *pictures("green", 2), *pictures("blue", 1)]
    evaluation = trained.evaluate(images, ["red"] * 3 + ["green"] * 3 + ["red"])
    assert evaluation.predictions == tuple(trained.predict(images))
    assert [prediction.name for prediction in evaluation.predictions] == ["red"] * 4 + ["green"] * 2 + ["blue"]
    assert evaluation.correct == 5 and evaluation.accuracy == pytest.approx(500 / 7)
    assert evaluation.class_accuracies() == {"green": pytest.approx(200 / 3), "red": 75.0}
    assert evaluation.confusions() == {("green", "red"): 1, ("red", "blue"): 1}
    assert evaluation.with_threshold(1.1) == (0, 0)


@pytest.mark.parametrize(
    ("labels", "message"),
    [(["red", None], "one is None"), (["red"], "1 for 2 images"), (["red", "gren"], "did you mean green?")],
)
def test_every_image_needs_a_class_of_the_model(labels: list[str | None], message: str, trained: Model) -> None:
    with pytest.raises(ValueError, match=message):
        trained.evaluate(pictures("red", 2), labels)


def test_an_image_is_predicted_within_its_task() -> None:
    spec = dualnet.StreamSpec((3, 28, 28), torch.tensor([[True, True, False, False], [False, False, True, True]]))
    model = Model(dualnet.make_learner("er", spec, dualnet.ER.Config(EncoderOptions(width=4))), list("abcd"))
    images = [picture for name in COLOURS for picture in pictures(name, 4)]
    labels = [*"adbcab" * 2]
    evaluation = model.evaluate(images, labels)
    tasks = [0 if label in "ab" else 1 for label in labels]
    expected = [model.predict(image, task)[0] for image, task in zip(images, tasks, strict=True)]
    assert [prediction.name for prediction in evaluation.predictions] == [prediction.name for prediction in expected]
    assert {len(prediction.classes) for prediction in evaluation.predictions} == {2}


def test_the_command_shows_classes_and_thresholds(capsys: pytest.CaptureFixture[str]) -> None:
    write("test", red=("red", 4), green=("red", 1), blue=("blue", 3))
    assert main(["evaluate", "model", "test", "--csv", "tables/all.csv"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert out.startswith("model: accuracy 87.5 % (7 of 8 images correct)\n") and not err
    assert ["green", "1", "0.0", "%", DASH, "red", "1"] in lines, "the class is never predicted: no precision"
    assert ["red", "4", "100.0", "%", "80.0", "%"] in lines
    assert ["0.5", "100.0", "%", "87.5", "%"] in lines
    with Path("tables/all.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wrong = [row for row in rows if row["class"] != row["prediction"]]
    assert len(rows) == 8 and [Path(row["image"]).parts[-2:] for row in wrong] == [("green", "0.png")]
    assert wrong[0]["prediction"] == "red" and 0 < float(wrong[0]["probability"]) <= 1


def test_the_table_of_predictions_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    write("test", red=("red", 1))
    assert main(["evaluate", "model", "test", "--csv", "-"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head == "image,class,prediction,probability,unknown" and "test/red/0.png,red,red," in row


def test_the_result_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    write("test", red=("red", 3), green=("red", 1))
    assert main(["evaluate", "model", "test", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["accuracy"], printed["images"]) == (75.0, 4)
    assert printed["classes"] == [
        {"name": "green", "images": 1, "accuracy": 0.0, "precision": None, "mistaken_for": {"red": 1}},
        {"name": "red", "images": 3, "accuracy": 100.0, "precision": 75.0, "mistaken_for": {}},
    ]
    assert printed["thresholds"][0] == {"threshold": 0.5, "predicted": 100.0, "correct": 75.0}


@pytest.mark.parametrize(("least", "status"), [("75", 0), ("75.1", 1)])
def test_an_accuracy_that_is_too_low_fails(least: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    write("test", red=("red", 3), green=("red", 1))
    assert main(["evaluate", "model", "test", "--at-least", least]) == status
    out, err = capsys.readouterr()
    assert out.startswith("model: accuracy 75.0 %")
    assert err == ("dualnet: model: the accuracy is 75.00 %, below 75.1 %\n" if status else "")


def test_classes_that_the_model_does_not_have_are_left_out(capsys: pytest.CaptureFixture[str], error_line) -> None:
    write("test", red=("red", 2), owl=("red", 1))
    assert main(["evaluate", "model", "test"]) == 0
    out, err = capsys.readouterr()
    assert "100.0 % (2 of 2 images correct)" in out
    assert err == "dualnet: warning: owl: left out with 1 image, unknown to the model\n"
    write("other", owl=("red", 1))
    assert (
        error_line("evaluate", "model", "other") == "dualnet: other: owl: unknown to the model; name another folder\n"
    )
