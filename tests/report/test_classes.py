"""What the report and `dualnet show` say of classes, of chance and of the certainty of a result."""

import re
from pathlib import Path

import numpy as np
import yaml

from dualnet import Model
from dualnet.cli import main
from dualnet.experiments.record import read_record
from dualnet.report import report
from dualnet.report.class_tables import (
    class_table,
    confused_pairs_table,
    confusion_matrix,
    rows_with_classes,
    tasks_table,
)
from dualnet.report.findings import sentences
from dualnet.report.rows import ReportRow, compare, top_rows
from dualnet.report.stream_facts import chance, data_set_text
from dualnet.report.style import PHONE_WIDTH
from dualnet.report.tables import options_table, results_table

JPEG = "/9j/4AAQSkZJRg=="


def mistake(truth: int, answer: int, image: str = "a/1.png") -> dict:
    return {"truth": truth, "answer": answer, "probability": 0.987, "image": image, "thumbnail": JPEG}


# Four classes in two tasks: 60, 100, 100 and 80 % right.
CLASSES = {"counts": [10, 10, 10, 10], "confusions": [[0, 1, 3], [0, 2, 1], [3, 0, 2]], "mistakes": [mistake(0, 1)]}
TASKS = [[60.0, None], [80.0, 90.0]]


def page_of(folder: Path) -> str:
    report([folder])
    return (folder / "report.html").read_text()


def test_a_single_row_tells_what_a_class_is_taken_for(tmp_path, make_run):
    make_run(tmp_path / "0", TASKS, classes=CLASSES, protocol="task_free")
    rows = compare([tmp_path]).rows
    assert class_table(rows).texts == [
        ["a", "60.0", "b (30 %)", "1", "10"],
        ["b", "100.0", "—", "1", "10"],
        ["c", "100.0", "—", "2", "10"],
        ["d", "80.0", "a (20 %)", "2", "10"],
    ]
    assert confused_pairs_table(rows[0]).texts == [["a", "b", "30 %"], ["d", "a", "20 %"], ["a", "c", "10 %"]]
    assert tasks_table(rows[0]).texts == [["1", "a, b"], ["2", "c, d"]]


def test_seeds_are_one_column_and_rows_one_each_the_best_first(tmp_path, make_run):
    make_run(tmp_path / "a-0", TASKS, classes=CLASSES, name="er")
    make_run(tmp_path / "a-1", TASKS, classes={**CLASSES, "confusions": []}, name="er", seed=1)
    make_run(tmp_path / "b", [[60.0, None], [90.0, 90.0]], classes=CLASSES, name="better")
    make_run(tmp_path / "c", [[None, None], [99.0, 99.0]], classes=CLASSES, name="all", learner={"name": "offline"})
    make_run(tmp_path / "d", [[60.0, None], [99.0, 99.0]], name="older")
    table = class_table(rows_with_classes(compare([tmp_path]).rows))
    assert table.header == ["class", "better", "er", "all", "task", "test images"]
    assert table.texts[0] == ["a", "60.0", "80.0 ± 28.3", "60.0", "1", "10"]
    assert "Most confident mistakes: better" in page_of(tmp_path)


def test_confusions_are_shares_of_what_can_be_the_answer(tmp_path, make_run):
    for protocol in ("task_free", "task_aware"):
        confusions = CLASSES["confusions"] if protocol == "task_free" else [[0, 1, 3]]
        make_run(tmp_path / protocol, TASKS, classes={**CLASSES, "confusions": confusions}, protocol=protocol)
    free = confusion_matrix(ReportRow(0, "", [read_record(tmp_path / "task_free")]))
    assert free.tolist() == [[60, 30, 10, 0], [0, 100, 0, 0], [0, 0, 100, 0], [20, 0, 0, 80]]
    aware = confusion_matrix(ReportRow(0, "", [read_record(tmp_path / "task_aware")]))
    assert np.isnan(aware[:2, 2:]).all() and np.isnan(aware[2:, :2]).all()
    assert aware[:2, :2].tolist() == [[70, 30], [0, 100]]


def test_the_page_has_a_section_where_a_run_recorded_it(tmp_path, make_run):
    make_run(tmp_path / "older")
    assert "Classes after the last task" not in page_of(tmp_path)
    make_run(tmp_path / "newer", TASKS, classes=CLASSES, name="newer")
    page = page_of(tmp_path)
    assert (
        "Classes after the last task" in page
        and "Confusion matrix of newer" in page
        and "Confusion matrix of demo" not in page
    )
    assert "a predicted as b: 30.00\xa0%" in page and f"data:image/jpeg;base64,{JPEG}" in page
    assert "classes of the image&#39;s task" in page
    assert "| a | 60.0 | b (30 %) | 1 | 10 |" in (tmp_path / "report.md").read_text()


def test_many_classes_are_folded_to_the_weakest_and_the_pairs(tmp_path, make_run):
    confusions = [[number, number - 1, number % 7] for number in range(1, 100)]
    classes = {"counts": [10] * 100, "confusions": confusions, "mistakes": []}
    make_run(tmp_path / "0", TASKS, classes=classes, protocol="task_free")
    page = page_of(tmp_path)
    assert "Confusion matrix" not in page and "Most confused classes" in page and "<summary>All classes" in page
    shown = page.split("<summary>All classes")[0].split("Classes after the last task")[1]
    weak = re.findall(r"class (\d+)</div></th>", shown)
    assert len(weak) == 15 and all(int(number) % 7 >= 5 for number in weak)


def test_names_of_classes_and_images_stay_text(tmp_path, make_run):
    folder = make_run(tmp_path / "0", TASKS, classes={**CLASSES, "mistakes": [mistake(0, 1, "'><script>alert(1)")]})
    file = folder / "experiment.yaml"
    content = yaml.safe_load(file.read_text())
    content["stream"]["class_names"][:2] = ["<script>evil", "\x1b[2J'\"|"]
    file.write_text(yaml.safe_dump(content))
    page = page_of(tmp_path)
    assert page.count("<script>") == 1
    assert "\x1b" not in page and "\x1b" not in (tmp_path / "report.md").read_text()
    assert main(["show", str(folder)]) == 0


def test_chance_is_a_line_of_the_table_and_of_the_plot(tmp_path, make_run):
    for protocol, expected in (("task_aware", "50.00"), ("task_free", "25.00")):
        make_run(tmp_path / protocol, TASKS, classes=CLASSES, protocol=protocol)
        comparison = compare([tmp_path / protocol])
        assert results_table(comparison.rows, comparison).texts[-1][:3] == ["chance", expected, "—"]
        page = page_of(tmp_path / protocol)
        assert f"chance: {expected}\xa0%" in page and ">chance</text>" not in page, "the axis fits the curve"
    assert chance(read_record(make_run(tmp_path / "older"))) is None


def with_images_in(root, folder):
    """The run folder, changed to one of `image_folder`."""
    content = yaml.safe_load((folder / "experiment.yaml").read_text())
    content["benchmark"] = {"name": "image_folder", "root": root}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(content))
    return folder


def test_a_data_set_has_a_name_and_a_size(tmp_path, make_run):
    run = read_record(make_run(tmp_path / "a", TASKS, classes=CLASSES))
    assert data_set_text(run) == (
        "procedural: 4 classes, 2 tasks, 100 images for training, 40 images for testing, 32 by 32 pixels"
    )
    run = read_record(with_images_in("/data/My birds/", make_run(tmp_path / "b")))
    assert data_set_text(run) == "My birds: 1 class, 32 by 32 pixels"
    assert "Continual learning on My birds" in page_of(run.folder)


def test_the_name_of_a_folder_of_images(tmp_path, make_run):
    for number, root in enumerate(("data/mnist/train", "/a/b/birds", "/train", "")):
        with_images_in(root, make_run(tmp_path / str(number), name=f"er-{number}"))
    rows = compare([tmp_path]).rows
    assert [row.data_set for row in rows] == ["mnist/train", "birds", "/train", "image_folder"]


def test_one_run_has_an_interval_over_its_test_images(tmp_path, make_run):
    """Wilson's interval of 85 % of 40 images is 70.9 to 92.9 %; of two seeds, Student's."""
    make_run(tmp_path / "0", TASKS, classes=CLASSES)
    (sentence,) = sentences(compare([tmp_path]))
    assert "ACC 85.00" in sentence and "70.93 to 92.94" in sentence and "above chance, 50.00" in sentence
    make_run(tmp_path / "1", [[60.0, None], [82.0, 90.0]], classes=CLASSES, seed=1)
    (sentence,) = sentences(compare([tmp_path]))
    assert "ACC 85.50" in sentence and "79.15 to 91.85" in sentence and "2 seeds" in sentence


def test_what_guessing_would_reach_is_not_above_chance(tmp_path, make_run):
    make_run(tmp_path / "0", [[60.0, None], [50.0, 60.0]], classes=CLASSES)
    (sentence,) = sentences(compare([tmp_path]))
    assert "not different from chance, 50.00" in sentence


def test_single_seeds_are_called_uncertain_and_offline_is_not_ahead(tmp_path, make_run):
    make_run(tmp_path / "a", [[60.0, None], [50.0, 60.0]], name="er")
    make_run(tmp_path / "b", TASKS, name="ours")
    make_run(tmp_path / "c", [[None, None], [99.0, 99.0]], name="all", learner={"name": "offline"})
    (sentence,) = sentences(compare([tmp_path]))
    assert sentence.startswith("ours has the highest ACC, 30.00 above er.") and "run more" in sentence
    assert [row.label for row in top_rows(compare([tmp_path]).rows, 1)] == ["ours", "all"]


def test_options_that_one_learner_lacks_are_folded(tmp_path, make_run):
    make_run(tmp_path / "a", name="er", learner={"name": "er", "lr": 0.1})
    make_run(tmp_path / "b", name="dualnet", learner={"name": "dualnet", "lr": 0.2, "slow": {"beta": 1}})
    make_run(tmp_path / "c", name="free", protocol="task_free", learner={"name": "er", "lr": 0.1})
    comparison = compare([tmp_path])
    matter, others = ({line[0]: line[1] for line in options_table(comparison, compared=o).texts} for o in (True, False))
    assert matter["dualnet"] == "learner.lr=0.2, learner.name=dualnet"
    assert others["dualnet"] == "learner.slow.beta=1" and others["free"] == "protocol=task_free"
    assert others["most experiments"] == "protocol=task_aware"
    page = page_of(tmp_path)
    assert re.search(r"<details [^>]* open>\s*<summary><h2>Options that differ", page)
    assert re.search(r'<details class="section" id="part-\d">\s*<summary><h2>Other options that differ', page)


def test_text_in_plots_is_readable_on_a_phone(tmp_path, make_run):
    """All text of an SVG is scaled with it: at least 11 pixels where the drawing is as wide as a phone allows."""
    events = [{"event": "stability", "task": 1, "step": 60, "seconds": 3.0, "accuracy": [70.0]}]
    make_run(tmp_path / "a", TASKS, classes=CLASSES, events=events)
    twenty = np.where(np.tri(20, dtype=bool), 50.0, np.nan)
    make_run(tmp_path / "b", [[None if np.isnan(v) else v for v in line] for line in twenty], name="b", size=1)
    drawings = re.findall(r"<svg class.*?</svg>", page_of(tmp_path), flags=re.DOTALL)
    assert len(drawings) > 6
    for drawing in drawings:
        width = float(re.search(r'viewBox="0 0 ([0-9.]+)', drawing)[1])
        sizes = map(float, re.findall(r"(?:--text: |font: |font-size: )([0-9.]+)px", drawing))
        assert min(sizes) * PHONE_WIDTH / width >= 11, drawing[:200]


def shown(capsys, folder: Path) -> str:
    assert main(["show", str(folder)]) == 0
    return capsys.readouterr().out


def test_show_a_run(finished, capsys):
    """Of a real run: its classes by task, what is in the result, and every class with its accuracy."""
    text, record = shown(capsys, finished), read_record(finished)
    for name in record.stream["class_names"]:
        assert text.count(name) >= 2, "by task, and with its accuracy"
    for words in ("procedural", "task_aware", "dualnet", "finished: 6 steps", f"ACC {record.metrics['ACC']:.2f}"):
        assert words in text
    assert "tasks (`predict --task` counts them from 0)" in text
    assert "chance 50.00" in text and "4 classes, 2 tasks, 24 images for training, 8 images for testing" in text


def test_show_a_run_that_is_not_finished_and_one_of_an_older_version(tmp_path, make_run, stopped, capsys):
    text = shown(capsys, stopped)
    assert "not finished: 5 steps, 1 of 2 tasks learned" in text and "figures" not in text
    assert "ACC 65.00" in shown(capsys, make_run(tmp_path / "older"))


def test_show_a_saved_model(tmp_path, small_learner, capsys):
    model = Model(small_learner("er"), tuple("abcdef"))
    model.add_classes(["owl"], task=0)
    model.save(tmp_path / "model")
    text = shown(capsys, tmp_path / "model")
    for row in model.learner.class_mask:
        assert f": {', '.join(np.array(model.class_names)[row.numpy()])}\n" in text
    assert "owl" in text and "7 classes" in text


def test_show_what_is_no_run(tmp_path, make_run, error_line):
    folder = make_run(tmp_path / "runs" / "seed-3")
    assert str(tmp_path / "runs: ") in error_line("show", tmp_path / "runs")
    (folder / "classes.json").write_text("{")
    assert "classes.json" in error_line("show", folder)
