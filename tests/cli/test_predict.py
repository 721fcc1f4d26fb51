"""`dualnet predict`: names with probabilities, tables, JSON; what cannot be read; tasks."""

import csv
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from commands import picture, run_tiny

import dualnet
from dualnet import cli

BAD_PREDICTIONS = {  # words, and what the line must name
    "no image": ([], "IMAGE"),
    "missing image": (["missing.png"], "missing.png: "),
    "not an image": (["tiny.yaml"], "tiny.yaml: "),
    "one of them is not": (["image.png", "tiny.yaml"], "tiny.yaml: "),
    "a name with an escape": (["a\x1b[2J\n.png"], "a\\x1b[2J\\n.png: "),
    "unknown task": (["image.png", "--task", "2"], "task: 2 "),
    "negative task": (["image.png", "--task", "-1"], "task: -1 "),
    "task is no number": (["image.png", "--task", "x"], "--task: "),
    "no class to name": (["image.png", "--top", "0"], "top: 0 "),
    "threshold in percent": (["image.png", "--threshold", "90"], "--threshold: '90' "),
    "a share of a model that refuses none": (["image.png", "--unknown", "0.1"], "--unknown: needs "),
    "share in percent": (["image.png", "--unknown", "5"], "--unknown: '5' is not 0, or a number above 0 and up to 1"),
    "two kinds of output": (["image.png", "--json", "--csv", "-"], "--csv -: "),
    "unknown flag": (["image.png", "--jsn"], "arguments: --jsn;"),
    "an image after the options": (["image.png", "--task", "0", "image.png"], "arguments: image.png;"),
}


@pytest.mark.parametrize("case", BAD_PREDICTIONS)
def test_bad_input_to_predict(case: str, trained: Path, error_line) -> None:
    words, line = BAD_PREDICTIONS[case]
    assert line in error_line("predict", trained, *words)


def test_predict_names_paths_that_do_not_exist(trained: Path, error_line) -> None:
    line = error_line("predict", trained, "here.png", "image.png", "some/cat.png")
    assert line.startswith("dualnet: 2 of 3 images unreadable: here.png (No such file or directory), some/cat.png (")


def test_predict_skips_paths_that_do_not_exist_but_not_all_of_them(trained: Path, capsys, error_line) -> None:
    words = ["predict", str(trained), "--task", "1", "--on-error", "skip"]
    assert cli.main([*words, "missing.bmp", "image.png"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("image.png: ") and out.count("\n") == 1
    assert err == "dualnet: warning: missing.bmp: unreadable image (No such file or directory); skipped\n"
    assert error_line(*words, "missing.bmp").endswith("; there is nothing to predict\n")


def test_predict_names_the_run_in_a_folder_of_runs(trained: Path, error_line) -> None:
    assert f"such as {trained}" in error_line("predict", trained.parent, "image.png")


def test_predict_prints_names_with_probabilities(trained: Path, capsys) -> None:
    assert cli.main(["predict", str(trained), "image.png", "image.png"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    name, _, answers = first.partition(": ")
    assert name == "image.png"
    expected = dualnet.load(trained).predict(["image.png"], top=3)[0]
    shown = [f"{c} {100 * p:.1f} %" for c, p in zip(expected.classes, expected.probabilities, strict=True)]
    assert answers.split(", ") == shown and len(shown) == 3


def test_predict_a_folder_and_write_a_table(trained: Path, capsys) -> None:
    for number in range(3):
        picture(Path(f"some/{number}, a.png"), seed=number)
    Path("some/notes.txt").write_text("no image")
    assert cli.main(["predict", str(trained), "some", "image.png", "--csv", "tables/out.csv", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [*(f"some/{n}, a.png" for n in range(3)), "image.png"]
    with Path("tables/out.csv").open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["image", "unknown", "class_1", "probability_1", "class_2", "probability_2", "error"]
    expected = dualnet.load(trained).predict("some", top=2)
    for row, prediction in zip(rows, expected, strict=False):
        cells = "false", prediction.name, str(prediction.probability), prediction.classes[1]
        assert tuple(row[1:5]) == cells
    assert len(rows) == 4 and rows[0][0] == "some/0, a.png"


def test_a_table_is_printed_alone(trained: Path, capsys) -> None:
    assert cli.main(["predict", str(trained), "image.png", "--csv", "-", "--top", "1", "--task", "0"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert (
        head == "image,unknown,class_1,probability_1,error" and row.startswith("image.png,") and not Path("-").exists()
    )


def test_predictions_below_the_threshold_are_unknown(trained: Path, capsys) -> None:
    for number in range(4):
        picture(Path(f"some/{number}.png"), seed=number)
    Path("some/4.png").write_bytes(b"")
    predictions = dualnet.load(trained).predict("some", task=0, on_error="skip")
    threshold = sorted(prediction.probability for prediction in predictions)[3]  # reached by two of four
    expected = [not prediction.error and prediction.probability < threshold for prediction in predictions]
    assert sum(expected) == 2
    words = ["predict", str(trained), "some", "--task", "0", "--on-error", "skip", "--threshold", str(threshold)]
    assert cli.main([*words, "--csv", "out.csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["unknown (" in line for line in lines] == expected[:4]
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["unknown"] == "true" for row in rows] == expected and all(row["class_1"] for row in rows[:4])
    assert cli.main([*words, "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["unknown"] for line in printed] == expected


def test_a_table_that_is_a_folder(trained: Path, error_line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualnet.cli.predict.load", None)  # it is refused before the model is loaded
    Path("some").mkdir()
    assert error_line("predict", trained, "image.png", "--task", 0, "--csv", "some").startswith("dualnet: some: ")


def test_a_table_that_fails_does_not_lose_the_predictions(
    trained: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    monkeypatch.setattr("dualnet.atomic.write", full)
    assert cli.main(["predict", str(trained), "image.png", "--task", "0", "--csv", "out.csv"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("image.png: ") and captured.err.startswith("dualnet: out.csv: No space left")


def test_a_table_with_a_name_that_is_not_utf_8(trained: Path, capsys) -> None:
    name = "caf\udce9.png"  # as Python decodes the byte 0xe9
    Path("image.png").rename(name)
    assert cli.main(["predict", str(trained), name, "--task", "0", "--csv", "out.csv"]) == 0
    assert Path("out.csv").read_text(encoding="utf-8").splitlines()[1].startswith("caf\\udce9.png,")


def test_predict_skips_unreadable_images(trained: Path, capsys, error_line) -> None:
    for number in range(3):
        picture(Path(f"some/{number}.gif"), seed=number)
    Path("some/1.gif").write_bytes(b"")
    words = ["predict", str(trained), "some", "--task", "1", "--csv", "out.csv"]
    assert "some/1.gif" in error_line(*words) and not Path("out.csv").exists()
    assert cli.main([*words, "--on-error", "skip"]) == 0
    captured = capsys.readouterr()
    assert [line.partition(": ")[0] for line in captured.out.splitlines()] == ["some/0.gif", "some/2.gif"]
    assert captured.err.startswith("dualnet: warning: some/1.gif: ") and captured.err.count("\n") == 1
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], bool(row["class_1"]), row["error"]) for row in rows] == [
        ("some/0.gif", True, ""),
        ("some/1.gif", False, "empty file"),
        ("some/2.gif", True, ""),
    ]
    assert cli.main(["predict", str(trained), "some", "--json", "--on-error", "skip", "--task", "1"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer.get("error") for answer in answers] == [None, "empty file", None] and not answers[1]["classes"]
    line = error_line("predict", trained, "some/1.gif", "--on-error", "skip")
    assert line.endswith("1.gif: unreadable image (empty file); there is nothing to predict\n")


def test_predict_skips_an_unreadable_sub_folder(trained: Path, capsys, error_line, monkeypatch) -> None:
    for name in ("some/a/0.png", "some/b/deeper/0.png", "some/c/0.png"):
        picture(Path(name), seed=0)
    scandir = os.scandir

    def denied(path: str) -> Any:
        if str(path).endswith("/b/deeper"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", denied)  # the tests may run as root, who can read every folder
    words = ["predict", str(trained), "some", "--task", "1"]
    line = error_line(*words)
    assert line.startswith("dualnet: some/b/deeper: ") and "--on-error skip" in line
    assert cli.main([*words, "--on-error", "skip"]) == 0
    out, err = capsys.readouterr()
    assert [line.partition(": ")[0] for line in out.splitlines()] == ["some/a/0.png", "some/c/0.png"]
    assert err.startswith("dualnet: warning: some/b/deeper: ") and err.endswith("; skipped\n") and err.count("\n") == 1
    assert "some/b/deeper: " in error_line("predict", trained, "some/b/deeper", "--task", 1)


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_predict_warns_if_a_task_aware_model_is_given_no_task(json_too: list[str], trained: Path, capsys) -> None:
    """Its predictions look as confident as those with a task, but are far less accurate."""
    words = ["predict", str(trained), "image.png", *json_too]
    assert cli.main(words) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("dualnet: warning: ") and captured.err.count("\n") == 1
    assert "--task (0 to 1)" in captured.err and "task_free_boundaries" in captured.err
    assert len(captured.out.splitlines()) == 1 and captured.out.startswith("{" if json_too else "image.png: ")
    assert cli.main([*words, "--task", "1"]) == 0
    assert capsys.readouterr().err == ""


def test_predict_does_not_warn_for_a_task_free_model(capsys, error_line) -> None:
    assert cli.main(run_tiny("--out", "out", "--device", "cpu", "--protocol", "task_free_boundaries")) == 0
    capsys.readouterr()
    assert cli.main(["predict", "out/seed-0", "image.png"]) == 0
    assert capsys.readouterr().err == ""
    for words in (["predict", "out/seed-0", "image.png"], ["export", "out/seed-0", "it.onnx"]):
        for task in ("0", "1"):
            wrong = f"task: {task} is given, but the model has no tasks to choose from; leave it out"
            assert wrong in error_line(*words, "--task", task)
