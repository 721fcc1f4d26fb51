"""Plots that appear only where runs make them meaningful: against an option, stability, the memory; and the cost."""

import itertools
import json
import math
import re
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from dualnet.cli import main
from dualnet.experiments.record import read_record
from dualnet.report import plots, report
from dualnet.report.legends import task_legend
from dualnet.report.plots import downsample, mean_memory, mean_stability, trend_plot
from dualnet.report.rows import compare
from dualnet.report.style import FEW_TASKS, PALETTE, task_colour
from dualnet.report.tables import (
    ANYTIME_METRICS,
    STABILITY_METRICS,
    metrics_table,
    results_table,
    runs_table,
    trend_tables,
)
from dualnet.report.trend import lines, trends
from dualnet.ttest import two_sided_p

ROUNDS, SHARE = "learner.slow.rounds", "labels.share"
TWO_TASKS = [[80.0, None], [60.0, 70.0]]  # ACC 65
BETTER = [[90.0, None], [80.0, 86.0]]  # ACC 83


def dualnet(rounds: int, slots: int = 10) -> dict:
    return {"name": "dualnet", "slow": {"rounds": rounds}, "memory": {"slots_per_class": slots}}


def evaluation(step: int, *accuracy: float) -> dict:
    return {"event": "stability", "task": 1, "step": step, "seconds": 1.0, "accuracy": list(accuracy)}


def stored(task: int, tasks: list[int] | None, classes: list[int]) -> dict:
    return {"event": "memory", "task": task, "step": 40 * (task + 1), "slots": 8, "tasks": tasks, "classes": classes}


def headings(folder: Path) -> list[str]:
    report([folder])
    return re.findall(r"<h2>(.*?)</h2>", (folder / "report.html").read_text())


# Accuracy against an option


def test_one_line_for_each_size_of_the_memory(tmp_path, make_run):
    """The names of the experiments may differ; rows without the option, and values that stand alone, make no line."""
    for slots in (10, 50):
        for rounds in (10, 0, 3):
            make_run(tmp_path / f"{slots}-{rounds}", name=f"n{rounds}-{slots}", learner=dualnet(rounds, slots))
    make_run(tmp_path / "er", name="er")
    make_run(tmp_path / "alone", name="alone", learner=dualnet(3, slots=7))
    drawn = lines(compare([tmp_path]).rows, ROUNDS)
    assert [line.label for line in drawn] == ["dualnet (slots_per_class=10)", "dualnet (slots_per_class=50)"]
    assert [list(line.accuracies) for line in drawn] == [[0, 3, 10], [0, 3, 10]]
    assert not lines(compare([tmp_path]).rows, SHARE)


def test_a_point_is_the_accuracy_of_its_seeds(tmp_path, make_run):
    for seed, accuracy in enumerate((TWO_TASKS, BETTER)):
        make_run(tmp_path / f"0-{seed}", accuracy, seed=seed, learner=dualnet(0))
    make_run(tmp_path / "3", BETTER, learner=dualnet(3))
    (line,) = lines(compare([tmp_path]).rows, ROUNDS)
    assert line.accuracies == {0: [65, 83], 3: [83]}


def test_one_line_for_each_learner_over_the_labelled_share(tmp_path, make_run):
    """A run of a version without `labels` had all labels."""
    for name in ("er", "dualnet"):
        for share in (0.1, 0.25):
            labels = {"share": share, "drawn_per": "sample", "delay": 0, "delay_spread": 0}
            make_run(tmp_path / f"{name}-{share}", name=f"{name}-{share}", learner={"name": name}, labels=labels)
        make_run(tmp_path / name, name=name, learner={"name": name})
    drawn = lines(compare([tmp_path]).rows, SHARE)
    assert [line.label for line in drawn] == ["dualnet", "er"]
    assert [list(line.accuracies) for line in drawn] == [[0.1, 0.25, 1], [0.1, 0.25, 1]]


def test_lines_of_a_table_have_the_names_of_its_rows(tmp_path, make_run):
    """Of `table/group/row`, where the groups differ in the share of labels and the rows in several options."""
    for row, learner in (("with", dualnet(8, slots=50)), ("without", dualnet(0, slots=10))):
        for share in (0.1, 0.25):
            labels = {"share": share, "drawn_per": "batch", "delay": 0, "delay_spread": 0}
            name = f"table/labels-{share:.0%}/{row}"
            make_run(tmp_path / f"{row}-{share}", name=name, learner=learner, labels=labels)
    assert [line.label for line in lines(compare([tmp_path]).rows, SHARE)] == ["without", "with"]


def test_runs_that_may_not_be_compared_share_no_line(tmp_path, make_run):
    make_run(tmp_path / "a", learner=dualnet(0), size=1)
    make_run(tmp_path / "b", learner=dualnet(3), size=2)
    assert "Accuracy against an option" not in " ".join(headings(tmp_path))
    make_run(tmp_path / "c", learner=dualnet(5), size=2)
    assert "Accuracy against an option" not in headings(tmp_path), "two values"
    make_run(tmp_path / "d", learner=dualnet(8), size=2)
    assert "Accuracy against an option" in headings(tmp_path)


def test_an_option_that_is_no_number_makes_no_line(tmp_path, make_run):
    for i, rounds in enumerate(("many", "more", "nan")):
        make_run(tmp_path / str(i), learner={"name": "own", "slow": {"rounds": rounds}})
    assert not lines(compare([tmp_path]).rows, ROUNDS)


def few_labels(make_run, folder: Path, shares=(0.1, 1.0), rounds=(0, 8), seeds: int = 3) -> dict:
    """Runs of a grid by hand; returns the ACC of all seeds by share and rounds."""
    random, accs = np.random.default_rng(0), {}
    for share, n in itertools.product(shares, rounds):
        accs[share, n] = random.uniform(40, 90, seeds).tolist()
        for seed, acc in enumerate(accs[share, n]):
            options = {"learner": dualnet(n), "labels": {"share": share}, "seed": seed}
            make_run(folder / f"{share}-{n}-{seed}", [[acc, None], [acc, acc]], name="few", **options)
    return accs


def test_the_table_of_two_lines_has_their_difference(tmp_path, make_run):
    accs = few_labels(make_run, tmp_path, rounds=(8, 0))
    table = trend_tables(compare([tmp_path], against=SHARE))["Accuracy against labelled share (%)"]
    assert table.header == ["labelled share (%)", "experiment", "seeds", "ACC ↑", "difference", "p"]
    assert [line[:3] for line in table.texts[:2]] == [["10", f"dualnet (rounds={n})", "3"] for n in (0, 8)]
    for share, (first, second) in zip((0.1, 1.0), zip(table.texts[::2], table.texts[1::2], strict=True), strict=True):
        a, b = np.array(accs[share, 0]), np.array(accs[share, 8])
        assert [first[3], second[3]] == [f"{v.mean():.2f} ± {v.std(ddof=1):.2f}" for v in (a, b)]
        parts = a.var(ddof=1) / 3, b.var(ddof=1) / 3
        freedom = sum(parts) ** 2 / sum(part**2 / 2 for part in parts)
        mean, low, high = map(float, re.findall(r"[-+][0-9.]+", second[4]))
        assert mean == pytest.approx(b.mean() - a.mean(), abs=0.006) and first[4:] == ["", ""]
        assert two_sided_p((high - low) / 2 / math.sqrt(sum(parts)), freedom) == pytest.approx(0.05, abs=1e-4)
        assert float(second[5]) == pytest.approx(two_sided_p(mean / math.sqrt(sum(parts)), freedom), abs=0.001)


def test_single_seeds_have_no_interval_and_three_lines_no_difference(tmp_path, make_run):
    few_labels(make_run, tmp_path / "two", seeds=1)
    table = next(iter(trend_tables(compare([tmp_path / "two"], against=SHARE)).values()))
    assert re.fullmatch(r"[-+]\d+\.\d\d", table.texts[1][4]) and table.texts[1][5] == "—"
    few_labels(make_run, tmp_path / "three", rounds=(0, 1, 2))
    table = next(iter(trend_tables(compare([tmp_path / "three"], against=SHARE)).values()))
    assert table.header == ["labelled share (%)", "experiment", "seeds", "ACC ↑"] and len(table.texts) == 6


def test_lines_with_a_name_of_their_own_are_labelled_by_it(tmp_path, make_run):
    for name, lr in (("plain", 0.1), ("better", 0.2)):
        for share in (0.1, 1.0):
            folder = tmp_path / f"{name}-{share}"
            make_run(folder, name=name, learner={"name": "er", "lr": lr}, labels={"share": share})
    assert [line.label for line in lines(compare([tmp_path]).rows, SHARE)] == ["plain", "better"]


def test_runs_of_another_number_of_tasks_share_no_point(tmp_path, make_run):
    for n in (0, 1):
        make_run(tmp_path / f"two-{n}", learner=dualnet(n))
        make_run(tmp_path / f"one-{n}", [[50.0]], learner=dualnet(n))
    drawn = lines(compare([tmp_path]).rows, ROUNDS)
    assert [line.accuracies for line in drawn] == [{0: [50], 1: [50]}, {0: [65], 1: [65]}]


@pytest.mark.parametrize(
    ("values", "places", "texts"),
    [
        ([0, 3, 10], [0, 3, 10], ["0", "3", "10"]),
        ([0, 1, 2, 4, 8, 16], [0, 1, 2, 3, 4, 5], ["0", "1", "2", "4", "8", "16"]),
        ([1, 9, 9.1, 10], [1, 9, 10], ["1", "9", "10"]),  # no space for the text of 9.1
        ([-1, 0, 1], [-1, 0, 1], ["-1", "0", "1"]),
    ],
)
def test_an_axis_is_even_where_values_span_more_than_a_decade(tmp_path, make_run, values, places, texts):
    for value in values:
        make_run(tmp_path / str(value), learner=dualnet(value))
    comparison, axes = compare([tmp_path]), Figure().add_subplot()
    trend_plot(trends(comparison)[0], comparison, axes)
    assert axes.get_xticks().tolist() == places
    assert [text.get_text() for text in axes.get_xticklabels()] == texts


def test_labelled_shares_are_shown_in_percent(tmp_path, make_run):
    few_labels(make_run, tmp_path, shares=(0.05, 0.07, 1.0))
    comparison, axes = compare([tmp_path], against=SHARE), Figure().add_subplot()
    trend_plot(trends(comparison)[0], comparison, axes)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["5", "7", "100"]


def test_real_runs_against_an_option_from_the_command_line(tmp_path, tiny, run, capsys):
    for size, n, seed in [(12, 0, 0), (12, 1, 0), (12, 1, 1), (6, 0, 0), (6, 1, 0)]:
        learner = {"slow": {"rounds": n}, "encoder": {"name": "own_encoder.ThreeMaps"}}
        run(tiny(learner, batch_size=size, seed=seed), tmp_path / "runs" / f"{n}-{size}" / f"seed-{seed}")
    words = ["report", tmp_path / "runs", "--against", "batch_size", "--out", tmp_path / "out"]
    assert main([*map(str, words), "--picture", str(tmp_path / "picture.png")]) == 0
    shown = capsys.readouterr().out
    assert "Accuracy against batch_size" in shown and "(rounds=1)" in shown
    page, text = ((tmp_path / "out" / f"report.{kind}").read_text() for kind in ("html", "md"))
    assert "Accuracy against rounds" not in page, "two values"
    assert page.count("Accuracy against batch_size") == 2 and "## Accuracy against batch_size" in text
    accs = [json.loads(file.read_text())["metrics"]["ACC"] for file in tmp_path.glob("runs/1-12/*/result.json")]
    assert f"| 12 | dualnet (rounds=1) | 2 | {np.mean(accs):.2f} ± {np.std(accs, ddof=1):.2f} |" in text
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("option", ["labels.shar", "learner.memory.slots_per_class", "learner.name", "seed"])
def test_an_option_that_cannot_be_drawn_is_refused_before_anything_is_written(tmp_path, make_run, option):
    few_labels(make_run, tmp_path / "runs")
    for picture in (None, tmp_path / "out" / "picture.svg"):
        with pytest.raises(ValueError, match=f"against {option}: no two .*: {SHARE}, {ROUNDS}$"):
            report([tmp_path / "runs"], tmp_path / "out", against=option, picture=picture)
        assert not (tmp_path / "out").exists()


# Anytime accuracy


def anytime(step: int, accuracy: object) -> dict:
    return {"event": "anytime", "task": 1, "step": step, "seconds": 1.0, "accuracy": accuracy, "classes": 2}


def test_anytime_accuracy_appears_where_it_was_measured(tmp_path, make_run, capsys):
    make_run(tmp_path / "a", name="plain")
    assert "Anytime accuracy" not in headings(tmp_path)
    make_run(tmp_path / "b", name="measured", events=[anytime(30, 40.0), anytime(60, 62.0)])
    assert "Anytime accuracy" in headings(tmp_path)
    page, markdown = ((tmp_path / f"report.{kind}").read_text() for kind in ("html", "md"))
    assert "Accuracy on the classes seen of measured" in page and "classes seen of plain" not in page
    assert "| measured | 51.00 | 65.00 | 72.50 | 1 |" in markdown
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "anytime accuracy" in said and "A_AUC: mean accuracy (%) on the classes seen so far" in said


def test_anytime_accuracy_is_that_of_the_seeds_that_measured_it(tmp_path, make_run):
    """Lines that are torn or that a resumed run repeats are understood."""
    make_run(tmp_path / "0", TWO_TASKS, seed=0, events=[anytime(30, 0.0), anytime(60, 9.0), anytime(60, 62.0)])
    make_run(tmp_path / "1", BETTER, seed=1, events=[anytime(30, 50.0), anytime(60, "x"), anytime(90, math.nan)])
    make_run(tmp_path / "2", TWO_TASKS, seed=2)
    assert read_record(tmp_path / "1").log.anytime == {30: 50.0}
    comparison = compare([tmp_path])
    table = metrics_table(ANYTIME_METRICS, comparison.rows, comparison)
    assert table.header == ["experiment", "A_AUC ↑", "ACC ↑", "AIA ↑", "seeds"]
    assert table.texts == [["demo-er", "40.50 ± 13.44", "74.00 ± 12.73", "79.50 ± 9.90", "2"]]
    report([tmp_path])


def test_anytime_accuracy_is_compared_within_a_setting(tmp_path, make_run):
    for seed in range(2):
        for protocol, value in (("task_aware", 90.0), ("task_free", 40.0)):
            make_run(tmp_path / f"{protocol}-{seed}", seed=seed, protocol=protocol, events=[anytime(30, value + seed)])
    report([tmp_path])
    assert "90.50 ± 0.71" in (tmp_path / "report.md").read_text()
    assert "**90.50 ± 0.71**" not in (tmp_path / "report.md").read_text()


# Stability


def test_stability_appears_where_it_was_measured(tmp_path, make_run):
    make_run(tmp_path / "a", name="plain")
    assert "Stability over the stream" not in headings(tmp_path)
    make_run(tmp_path / "b", name="watched", events=[evaluation(45, 40.0), evaluation(60, 62.0)])
    assert "Stability over the stream" in headings(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "watched on each earlier task" in page and "plain on each earlier task" not in page
    assert "All experiments" not in page, "there is one experiment only"
    assert "## Stability over the stream" in (tmp_path / "report.md").read_text()


def test_the_worst_cases_of_seeds_are_in_the_table(tmp_path, make_run):
    """Of each seed its own lowest moment, not the lowest moment of the mean: seed 0 fell first, seed 1 later."""
    make_run(tmp_path / "0", seed=0, events=[evaluation(45, 40.0), evaluation(60, 62.0)])
    make_run(tmp_path / "1", seed=1, events=[evaluation(45, 70.0), evaluation(60, 50.0)])
    comparison = compare([tmp_path])
    table = metrics_table(STABILITY_METRICS, comparison.rows, comparison)
    assert table.header == ["experiment", "ACC ↑", "min-ACC ↑", "WC-ACC ↑", "seeds"]
    assert table.texts == [["demo-er", "65.00 ± 0.00", "45.00 ± 7.07", "57.50 ± 3.54", "2"]]
    steps, values = mean_stability(comparison.rows[0])
    assert steps.tolist() == [45, 60] and values[:, 0].tolist() == [55, 56] and np.isnan(values[:, 1]).all()


def test_a_task_that_was_never_evaluated_while_learning_shows_a_dash(tmp_path, make_run):
    three = [[80.0, None, None], [60.0, 70.0, None], [50.0, 60.0, 70.0]]
    make_run(tmp_path / "0", three, events=[evaluation(45, 40.0)])
    comparison = compare([tmp_path])
    assert metrics_table(STABILITY_METRICS, comparison.rows, comparison).texts[0][2:] == ["—", "—", "1"]
    report([tmp_path])


def test_of_too_many_points_the_lowest_or_the_means_stay(monkeypatch):
    monkeypatch.setattr(plots, "MAX_POINTS", 10)
    steps, values = np.arange(95.0), np.full((95, 2), 50.0)
    values[[7, 93], 0] = 10, 20
    values[:10, 1] = np.nan
    shown, lowest = downsample(steps, values, lowest=True)
    assert len(shown) == 10 and shown[0] == 4.5 and lowest[[0, 9], 0].tolist() == [10, 20]
    assert np.isnan(lowest[0, 1]) and lowest[1, 1] == 50
    assert downsample(steps, values[:, 0])[1][[0, 1]].tolist() == [46, 50]
    assert downsample(steps[:9], values[:9, 0])[1].tolist() == values[:9, 0].tolist()
    assert len(downsample(steps[:0], values[:0])[0]) == 0


# The memory


def test_the_memory_appears_where_it_was_told(tmp_path, make_run):
    make_run(tmp_path / "a", name="plain")
    assert "Composition of the memory" not in headings(tmp_path)
    make_run(tmp_path / "b", name="er", events=[stored(0, [4, 0], [2, 2, 0, 0]), stored(1, [4, 4], [2, 2, 2, 2])])
    assert "Composition of the memory" in headings(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "er stored examples of each task" in page and "plain stored examples" not in page


def test_stored_examples_are_the_mean_over_seeds(tmp_path, make_run):
    """A seed whose log was lost for a while does not move the others' tasks."""
    make_run(tmp_path / "0", seed=0, events=[stored(0, [4, 0], [4, 0]), stored(1, [2, 6], [2, 6])])
    make_run(tmp_path / "1", seed=1, events=[stored(1, [4, 4], [4, 4])])
    tasks, counts = mean_memory(compare([tmp_path]).rows[0])
    assert tasks.tolist() == [0, 1] and counts.tolist() == [[4, 0], [3, 5]]


def test_classes_are_shown_where_tasks_are_not_known(tmp_path, make_run):
    make_run(tmp_path / "0", events=[stored(0, None, [3, 1, 0]), stored(1, None, [2, 2, 4])])
    report([tmp_path])
    page = (tmp_path / "report.html").read_text()
    assert "stored examples of each class" in page and "class 3" in page


def test_few_tasks_have_names_and_many_a_scale():
    assert task_legend(FEW_TASKS).count("<span ") == FEW_TASKS
    assert "linear-gradient" in task_legend(FEW_TASKS + 1) and "task 11" in task_legend(FEW_TASKS + 1)
    assert task_legend(5, num_shown=4).count("<span ") == 4
    assert len({task_colour(task, 30) for task in range(30)}) == 30
    assert not {task_colour(task, 30) for task in range(30)} & set(PALETTE), "rows keep their colours for themselves"


# The page and the cost


@pytest.fixture
def counted(tmp_path, make_run) -> Path:
    for seed, forward in enumerate((1_000_000, 1_500_000)):
        cost = {"forward_samples": forward, "backward_samples": 31_260}
        make_run(tmp_path / f"new-{seed}", BETTER, name="a-rather-long-name-of-an-experiment", seed=seed, cost=cost)
    make_run(tmp_path / "old", name="old")
    return tmp_path


def test_the_cost_is_a_mean_over_seeds_and_a_dash_where_it_was_not_counted(counted):
    comparison = compare([counted])
    table = results_table(comparison.rows, comparison)
    assert table.header[-4:] == ["forward", "backward", "s / run", "peak memory"]
    assert [line[-4:] for line in table.texts] == [["1.25M", "31.3k", "61.2", "300 MiB"], ["—", "—", "61.2", "300 MiB"]]
    each = runs_table(compare([counted]))
    assert [line[each.header.index("forward")] for line in each.texts] == ["1.00M", "1.50M", "—"]


def test_eighty_columns_are_enough_for_the_terminal(counted):
    console = Console(width=80, file=StringIO())
    with console.capture() as capture:
        console.print(report([counted]))
    shown = capture.get()
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "1.25M" in shown and "83.00±0.00" in shown and "a-rather-long-name-of-an-experiment" in shown


def test_a_page_of_many_tasks_is_small_and_the_same_twice(tmp_path, make_run):
    """Matrices, maps and stacked bars are images inside of the page; every plot keeps its description."""
    size = 200
    classes = {"counts": [10] * 5 * size, "confusions": [[n, n + 1, 4] for n in range(5 * size - 1)], "mistakes": []}
    accuracy = np.where(np.tri(size, dtype=bool), 50.0, np.nan)
    matrix = [[None if np.isnan(value) else value for value in line] for line in accuracy]
    events = [evaluation(40 * task, *accuracy[task, :task].tolist()) for task in range(1, size)]
    events += [stored(task, [9] * (task + 1) + [0] * (size - task - 1), [0]) for task in range(size)]
    make_run(tmp_path / "a", matrix, events=events, classes=classes)
    pages = []
    for out in ("one", "two"):
        report([tmp_path / "a"], tmp_path / out)
        pages.append((tmp_path / out / "report.html").read_text())
    assert pages[0] == pages[1] and len(pages[0]) < 600_000
    assert pages[0].count("data:image/png;base64,") == 3 and "img-src data:" in pages[0]
    for description in ("Accuracy matrix of demo-er", "demo-er on each earlier task", "demo-er stored examples"):
        assert f'aria-label="{description}' in pages[0]
