"""Results by class at the end of a run: correct, the same in a resumed run, and refused if damaged."""

import base64
import io
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dualnet.experiments.experiment import parse
from dualnet.experiments.final_predictions import FinalPredictions, Mistake, read_final_predictions
from dualnet.experiments.record import read_record


def results_of(folder: Path) -> FinalPredictions:
    results = read_record(folder).classes
    assert results is not None
    return results


@pytest.mark.parametrize("protocol", ["task_aware", "task_free_boundaries"])
def test_they_are_those_of_the_last_evaluation(protocol, tiny, run, tmp_path: Path) -> None:
    """Within a task all classes are tested equally often, so that their mean is the task's accuracy."""
    record = read_record(run(tiny("er", protocol=protocol), tmp_path / "seed-0"))
    results = results_of(record.folder)
    assert results.counts == [2, 2, 2, 2] and record.accuracy is not None
    accuracies = np.array(results.accuracies()).reshape(2, 2)
    assert accuracies.mean(axis=1) == pytest.approx(record.accuracy[-1], abs=1e-3)
    if protocol == "task_aware":
        assert all(truth // 2 == answer // 2 for truth, answer in results.confusions), "a task has two classes"
    sure = [mistake.probability for mistake in results.mistakes]
    assert sure == sorted(sure, reverse=True) and all(0 < value <= 1 for value in sure)
    assert Counter((mistake.truth, mistake.answer) for mistake in results.mistakes) == Counter(results.confusions)


def test_a_learner_that_knows_one_class_only(own_learner: str, tiny, run, tmp_path: Path) -> None:
    """It predicts the class that it saw last for every image."""
    more = {"benchmark": {"test_per_class": 5}, "protocol": "task_free"}
    folder = run(tiny({"name": own_learner}, **more), tmp_path / "seed-0")
    results = results_of(folder)
    (answer,) = {answer for _, answer in results.confusions}
    assert results.confusions == {(truth, answer): 5 for truth in range(4) if truth != answer}
    assert results.accuracies() == [100 * (number == answer) for number in range(4)]
    kinds = Counter((mistake.truth, mistake.answer) for mistake in results.mistakes)
    assert kinds == {(truth, answer): 2 for truth in range(4) if truth != answer}, "two of a kind are enough"
    picture = Image.open(io.BytesIO(base64.b64decode(results.mistakes[0].thumbnail)))
    assert picture.format == "JPEG" and picture.size == (28, 28)


def test_mistakes_name_their_files_and_show_them(own_learner: str, run, tmp_path: Path) -> None:
    for name, colour in (("blue", (0, 0, 250)), ("red", (250, 0, 0))):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (200, 100), colour).save(tmp_path / "images" / name / f"{number}.png")
    options = {"name": "image_folder", "root": str(tmp_path / "images"), "classes_per_task": 2, "image_size": 100}
    benchmark = {**options, "cache": str(tmp_path / "cache")}
    experiment = parse({"name": "own", "benchmark": benchmark, "learner": {"name": own_learner}})
    results = results_of(run(experiment, tmp_path / "seed-0"))
    (mistake,) = results.mistakes
    name = ("blue", "red")[mistake.truth]
    assert Path(mistake.image).parent.name == name and (tmp_path / "images" / mistake.image).is_file()
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(mistake.thumbnail))))
    assert picture.shape == (64, 64, 3) and picture[32, 32].argmax() == (2 if name == "blue" else 0)


def test_a_run_that_was_killed_before_its_result_was_written(finished: Path, tiny, run, tmp_path: Path) -> None:
    """It is resumed at its end, without another evaluation."""
    folder = Path(shutil.copytree(finished, tmp_path / "seed-0"))
    expected = (folder / "classes.json").read_bytes()
    (folder / "classes.json").unlink()
    (folder / "result.json").unlink()
    assert read_record(folder).classes is None
    run(tiny(), folder)
    assert (folder / "classes.json").read_bytes() == expected


def test_a_folder_without_them_and_one_that_is_not_finished(tmp_path: Path, make_run, finished: Path) -> None:
    assert read_record(make_run(tmp_path / "older")).classes is None
    folder = Path(shutil.copytree(finished, tmp_path / "begun", ignore=shutil.ignore_patterns("result.json")))
    assert (folder / "classes.json").exists() and read_record(folder).classes is None


WHOLE = FinalPredictions([5, 4], {(0, 1): 2, (1, 0): 4}, [Mistake(0, 1, 0.5, "a/b.png", "/9j/4AAQ")])


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "classes.json").write_text(WHOLE.text())
    assert read_final_predictions(tmp_path / "classes.json", 2) == WHOLE
    assert WHOLE.accuracies() == [60, 0]


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("counts", [5]),
        ("counts", [5, -1]),
        ("counts", [5, True]),
        ("confusions", [[0, 2, 1]]),
        ("confusions", [[0, 1, 6]]),  # more than there are images
        ("confusions", [[0, 1]]),
        ("mistakes", [{"truth": 0}]),
        ("mistakes", [{**json.loads(WHOLE.text())["mistakes"][0], "thumbnail": "'><script>"}]),
        ("mistakes", [{**json.loads(WHOLE.text())["mistakes"][0], "thumbnail": "A" * 100_000}]),
        ("mistakes", [{**json.loads(WHOLE.text())["mistakes"][0], "probability": 2}]),
        ("mistakes", None),
    ],
)
def test_what_is_damaged_is_refused_with_its_path(part: str, content: object, tmp_path: Path) -> None:
    file = tmp_path / "classes.json"
    file.write_text(json.dumps({**json.loads(WHOLE.text()), part: content}))
    with pytest.raises(ValueError, match=r"classes\.json.*remove it") as error:
        read_final_predictions(file, 2)
    assert "\n" not in str(error.value)
