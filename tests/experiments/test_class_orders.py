"""Seeds with class orders of their own: `order_seed: seed`, from the run to the report and the ledger."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from run_fixtures import CPU, result_of, seeds_in

from dualnet import cli
from dualnet.experiments import runner
from dualnet.experiments.experiment import parse
from dualnet.experiments.manifest import manifest_of
from dualnet.experiments.record import read_record
from dualnet.experiments.stop import StopRequested
from dualnet.report.class_tables import class_table, confusion_matrix, names_of, predictions_of, tasks_table
from dualnet.report.rows import ReportRow, compare
from dualnet.reproduce.ledger import check_same_experiment

SEEDS = (0, 1, 2)
BY_SEED = {"order_seed": "seed", "num_tasks": 2, "classes_per_task": 3}


def folders_in(out: Path) -> dict[int, Path]:
    return {seed: out / f"seed-{seed}" for seed in SEEDS}


@pytest.fixture(scope="module")
def three_orders(quick_tiny, tmp_path_factory) -> Path:
    """Not to be written to."""
    out = tmp_path_factory.mktemp("orders")
    for folder, experiment in seeds_in(out, quick_tiny("er", benchmark=BY_SEED), *SEEDS).items():
        runner.run({folder: experiment}, CPU)
    return out


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_has_the_order_of_that_number(seed, three_orders, quick_tiny, run, run_state, tmp_path) -> None:
    same = quick_tiny("er", benchmark=BY_SEED | {"order_seed": seed}, seed=seed)
    assert run_state(run(same, tmp_path / "run")) == run_state(folders_in(three_orders)[seed])
    names = [tuple(read_record(folder).stream["class_names"]) for folder in folders_in(three_orders).values()]
    assert len(set(names)) == len(SEEDS)


def test_seeds_with_own_orders_run_side_by_side(three_orders, quick_tiny, stop_at, run_state, tmp_path) -> None:
    runs = seeds_in(tmp_path, quick_tiny("er", benchmark=BY_SEED), *SEEDS)
    with pytest.raises(StopRequested):
        runner.run(runs, CPU, stop_at(3))
    runner.run(runs, CPU)
    for seed, folder in folders_in(tmp_path).items():
        assert result_of(folder)["seeds_side_by_side"] == len(SEEDS)
        assert run_state(folder) == run_state(folders_in(three_orders)[seed])


def test_seeds_whose_tasks_differ_in_size_run_one_after_the_other(tiny, run, run_state, tmp_path) -> None:
    """Their batches have other shapes, so they cannot be one group."""
    random = np.random.default_rng(0)
    for number, count in enumerate((4, 6, 12, 20)):
        for index in range(count):
            file = tmp_path / "images" / f"class-{number}" / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (28, 28, 3), dtype=np.uint8)).save(file)
    options = {"name": "image_folder", "root": str(tmp_path / "images"), "cache": str(tmp_path / "cache")}
    options |= {"image_size": 28, "classes_per_task": 2, "order_seed": "seed"}
    experiment = parse({**tiny("er").mapping(), "benchmark": options})
    runner.run(seeds_in(tmp_path, experiment, *SEEDS), CPU)
    sizes = {tuple(read_record(folder).stream["train_sizes"]) for folder in folders_in(tmp_path).values()}
    assert len(sizes) > 1
    for seed, folder in folders_in(tmp_path).items():
        alone = run(experiment.with_seed(seed), tmp_path / "alone" / str(seed))
        assert run_state(folder) == run_state(alone)


@pytest.mark.usefixtures("plots_unsaved")
def test_the_report_has_one_row_for_all_orders(three_orders, quick_tiny, run, tmp_path) -> None:
    run(quick_tiny("er", benchmark=BY_SEED | {"order_seed": 1}), tmp_path / "seed-0")
    rows = compare([three_orders, tmp_path]).rows
    assert [len(row.runs) for row in rows] == [3, 1] and rows[0].setting != rows[1].setting
    assert compare([three_orders, tmp_path]).setting_names() == ["a class order for each seed", "class order 1"]
    assert cli.main(["report", str(three_orders), "--out", str(tmp_path / "report")]) == 0
    assert "every seed has a class order of its own" in (tmp_path / "report" / "report.md").read_text()
    assert "Classes of each task" not in (tmp_path / "report" / "report.html").read_text()


@pytest.mark.parametrize("protocol", ["task_aware", "task_free"])
def test_classes_are_averaged_by_name(protocol, quick_tiny, tmp_path) -> None:
    runner.run(seeds_in(tmp_path, quick_tiny("er", benchmark=BY_SEED, protocol=protocol), *SEEDS), CPU)
    (row,) = compare([tmp_path]).rows
    names, by_run = names_of(row.runs[0]), predictions_of(row)
    assert names == sorted(names) and tasks_table(row).rows == []
    for run, results in zip(row.runs, by_run, strict=True):
        assert run.classes is not None
        own = dict(zip(run.stream["class_names"], run.classes.accuracies(), strict=True))
        assert dict(zip(names, results.accuracies(), strict=True)) == own
        given = {run.stream["class_names"][mistake.truth] for mistake in run.classes.mistakes}
        assert {names[mistake.truth] for mistake in results.mistakes} == given
    assert [line[0] for line in class_table([row]).rows] == names
    assert np.allclose(confusion_matrix(row).sum(axis=1), 100), "what one seed cannot confuse another may"
    single = ReportRow(0, "", row.runs[1:2])
    tasks = [sorted(run_names) for run_names in by_task(row.runs[1].stream)]
    assert [line[1].split(", ") for line in tasks_table(single).rows] == tasks


def by_task(stream: dict[str, Any]) -> list[list[str]]:
    return [[stream["class_names"][number] for number in task] for task in stream["tasks"]]


def test_a_table_may_average_all_orders(three_orders, tiny) -> None:
    runs = [read_record(folder) for folder in folders_in(three_orders).values()]
    check_same_experiment(runs)
    assert {run.manifest["class_order"] for run in runs} == {"seed"}
    fixed = tiny(benchmark=BY_SEED | {"order_seed": 1})
    assert manifest_of(fixed, fixed.benchmark.make())["class_order"] != "seed"


def test_another_order_is_another_experiment(three_orders, quick_tiny, run) -> None:
    with pytest.raises(ValueError, match=r"holds another experiment \(benchmark.order_seed is seed there, 0 here\)"):
        run(quick_tiny("er", benchmark=BY_SEED | {"order_seed": 0}), folders_in(three_orders)[0])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--benchmark.order_seed", "-1"], "benchmark.order_seed: -1 is not 0 or more"),
        (["--benchmark.order_seed", "1.5"], "benchmark.order_seed: a whole number of 64 bits is needed, not '1.5'"),
        (["--benchmark.order_seed", "sed"], "benchmark.order_seed: 'sed' is not one of seed; did you mean seed?"),
        (["--benchmark.order_seed", "two"], "benchmark.order_seed: a whole number"),
    ],
)
def test_a_mistake_is_named_in_one_line(options, line, tiny_file, tmp_path, error_line) -> None:
    assert line in error_line("run", tiny_file, "--out", tmp_path / "out", "--device", "cpu", *options)


def test_every_seed_needs_the_same_classes(tmp_path, error_line) -> None:
    benchmark = {"name": "cifar100", "root": str(tmp_path), "order_seed": "seed", "num_tasks": 3}
    (tmp_path / "cifar.yaml").write_text(yaml.safe_dump({"benchmark": benchmark, "learner": {"name": "er"}}))
    line = error_line("run", tmp_path / "cifar.yaml", "--out", tmp_path / "out", "--device", "cpu")
    assert "benchmark.order_seed: seed with num_tasks would give each seed other classes; give a number" in line
