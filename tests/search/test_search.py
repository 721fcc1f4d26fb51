"""Searches: their files, their choice, and what they print. How their runs are run is tested in tests/jobs."""

import contextlib
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import BENCHMARK
from rich.console import Console
from run_fixtures import CPU

from dualnet import cli
from dualnet.experiments.experiment import read
from dualnet.experiments.run_folder import RunFolder
from dualnet.jobs.display import RowsDisplay
from dualnet.jobs.placement import Placement
from dualnet.search import Search, read_plan
from dualnet.search.points import Point, folder_name, make_point
from dualnet.search.stage_table import stage_table

EXPERIMENT = {
    "benchmark": {**BENCHMARK, "test_per_class": 4},
    "learner": {"name": "er", "encoder": {"width": 2}, "updates": 1, "replay_size": 4},
    "batch_size": 4,
    "log_every": 1,
    "checkpoint_every": 2,
}
TINY = {  # nine steps a run
    "experiment": EXPERIMENT,
    "seeds": [0, 1],
    "stages": [{"learner.lr": [0.01, 1e25, 0.1]}, {"learner.replay_size": [4, 8]}],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, content: dict[str, Any]) -> str:
    Path(name).write_text(yaml.safe_dump(content, sort_keys=False))
    return name


def run_search(*words: str) -> int:
    return cli.main(["search", *words, "--device", "cpu"])


def read_search(out: Path | str) -> dict[str, Any]:
    return json.loads((Path(out) / "search.json").read_text())


def figures(out: Path | str) -> dict[str, Any]:
    """All of search.json but times and machines, and chosen.yaml."""
    content = read_search(out)
    del content["environment"]
    for stage in content["stages"]:
        for point in stage["points"]:
            del point["seconds"]
    return {**content, "chosen.yaml": (Path(out) / "chosen.yaml").read_text()}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The tiny search, never stopped, and what it printed. Not to be written to."""
    folder, said = tmp_path_factory.mktemp("searched"), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        assert run_search(write("tiny.yaml", TINY), "--jobs", "1") == 0
    return folder / "runs" / "search-tiny", said.getvalue()


def test_the_whole_grid_is_in_search_json(searched: tuple[Path, str]) -> None:
    content = read_search(searched[0])
    assert (content["name"], content["metric"], content["seeds"], content["complete"]) == ("tiny", "ACC", [0, 1], True)
    first, second = content["stages"]
    assert [point["options"]["learner.lr"] for point in first["points"]] == [0.01, 1e25, 0.1]
    for point in (first["points"][0], first["points"][2], *second["points"]):
        values = [point["seeds"][seed]["ACC"] for seed in ("0", "1")]
        assert point["mean"] == pytest.approx(sum(values) / 2) and point["failed"] is None and point["seconds"] > 0
        assert point["spread"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert set(content["environment"]) >= {"dualnet", "torch", "python", "hardware", "device", "threads"}
    assert content["experiment"]["learner.encoder.width"] == 2 and "learner.lr" not in content["experiment"]


def test_a_stage_begins_with_the_best_of_the_one_before(searched: tuple[Path, str]) -> None:
    content = read_search(searched[0])
    first, second = content["stages"]
    whole = [point for point in first["points"] if point["mean"] is not None]
    assert first["chosen"] == max(whole, key=lambda point: point["mean"])["options"]
    assert {point["options"]["learner.lr"] for point in second["points"]} == {first["chosen"]["learner.lr"]}
    assert second["points"][0] == next(point for point in whole if point["options"] == first["chosen"]), "run once"
    assert content["chosen"] == second["chosen"] == max(second["points"], key=lambda point: point["mean"])["options"]
    assert len(list((searched[0] / "points").iterdir())) == 4


def test_a_point_that_diverges_is_recorded_and_the_rest_goes_on(searched: tuple[Path, str]) -> None:
    point = read_search(searched[0])["stages"][0]["points"][1]
    assert point["mean"] is None and point["seeds"] == {}
    assert point["failed"].startswith("seed-0: ") and "not finite at step" in point["failed"]
    assert str(searched[0]) not in (searched[0] / "search.json").read_text(), "no path of a machine"


def test_the_chosen_experiment_runs_as_it_is(searched: tuple[Path, str]) -> None:
    file = searched[0] / "chosen.yaml"
    chosen = read(str(file))
    assert chosen.name == "tiny-chosen" and chosen.learner.lr == read_search(searched[0])["chosen"]["learner.lr"]
    assert file.read_text().startswith("# Chosen by `dualnet search tiny` on validation tasks: ACC ")
    assert cli.main(["run", str(file), "--device", "cpu", "--out", "out"]) == 0
    assert RunFolder(Path("out/seed-0")).record.stream["class_names"] == list(chosen.benchmark.make().class_names)


def test_what_it_says(searched: tuple[Path, str]) -> None:
    said = searched[1]
    assert "stage 1/2: 6 runs\n" in said and "stage 2/2: 4 runs, 2 of them already run\n" in said
    assert "stage 2/2, 4/4: lr 0." in said and "\x1b" not in said
    rows = [line for line in said.splitlines() if line[:1].isdigit()]
    assert len(rows) == 5 and "chosen" in rows[0] and "not finite at step" in rows[2] and "chosen" in rows[3]
    assert "`dualnet run runs/search-tiny/chosen.yaml`" in said


def test_runs_are_on_validation_tasks_and_keep_no_weights(searched: tuple[Path, str]) -> None:
    folders = [file.parent for file in (searched[0] / "points").rglob("experiment.yaml")]
    assert len(folders) == 8
    assert all(RunFolder(folder).record.stream["validation"] is True for folder in folders)
    assert not list(searched[0].rglob("*.safetensors"))
    assert cli.main(["run", "demo-er", "--out", str(folders[0].parent), "--seeds", folders[0].name[-1]]) == 2


def test_a_finished_search_is_left_alone_and_a_grown_one_runs_what_is_new(searched, capsys) -> None:
    write("tiny.yaml", TINY)
    subprocess.run(["cp", "-r", searched[0], "out"], check=True)
    before = {path: path.stat().st_mtime_ns for path in Path("out/points").rglob("*")}
    assert run_search("tiny.yaml", "--out", "out", "--jobs", "2") == 0
    assert figures("out") == figures(searched[0])
    assert {path: path.stat().st_mtime_ns for path in Path("out/points").rglob("*")} == before
    write("tiny.yaml", {**TINY, "stages": [{"learner.lr": [0.01, 0.02, 1e25, 0.1]}, *TINY["stages"][1:]]})
    capsys.readouterr()
    assert run_search("tiny.yaml", "--out", "out", "--jobs", "1") == 0
    assert "stage 1/2: 8 runs, 6 of them already run\n" in capsys.readouterr().err
    assert [point["options"]["learner.lr"] for point in read_search("out")["stages"][0]["points"]][1] == 0.02


def test_stages_that_both_change_the_benchmark_can_be_repeated() -> None:
    """The second stage goes on from what the first chose: a benchmark that no first value made."""
    stages = [{"benchmark.seed": [0, 1]}, {"benchmark.train_per_class": [6, 8]}]
    words = (write("both.yaml", {"experiment": EXPERIMENT, "stages": stages}), "--out", "out", "--jobs", "1")
    assert run_search(*words) == 0
    first = read_search("out")
    assert run_search(*words) == 0
    assert read_search("out")["stages"] == first["stages"]


def leave(point: str, file: str, content: dict[str, Any]) -> None:
    """What a run of a search in `out` would have left."""
    folder = Path("out", "points", point, "seed-0")
    folder.mkdir(parents=True)
    (folder / file).write_text(json.dumps(content))


def leave_result(point: Point, **metrics: float) -> None:
    assert point.experiment is not None
    folder = RunFolder(Path("out", point.folder, "seed-0"))
    with folder.locked():
        folder.prepare(point.experiment, point.experiment.benchmark.make_validation(), CPU)
    all_metrics = {"ACC": 50.0, "FM": 5.0, "LA": 50.0, "AIA": 50.0, "BWT": 0.0, **metrics}
    folder.result_file.write_text(json.dumps({"accuracy": [[50.0]], "metrics": all_metrics, "seconds": 1.0}))


def test_nothing_is_chosen_where_everything_failed(capsys) -> None:
    write("bad.yaml", {"experiment": EXPERIMENT, "grid": {"learner.lr": [1e25, 1e26]}})
    for name in ("lr=1e+25", "lr=1e+26"):
        leave(name, "log.jsonl", {"event": "diverged", "step": 2, "reason": "the weights are not finite"})
    assert run_search("bad.yaml", "--out", "out", "--jobs", "1") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert (
        last.startswith("dualnet: out: ") and "learner.lr 1e+25: seed-0: the weights are not finite at step 2" in last
    )
    assert not Path("out/chosen.yaml").exists() and len(read_search("out")["stages"][0]["points"]) == 2


def test_a_value_that_does_not_go_with_what_was_chosen(capsys) -> None:
    """Found only in the second stage: a draw of 8 from 4 candidates."""
    learner = {"name": "mir", "encoder": {"width": 2}, "updates": 1, "candidates": 8}
    stages = [{"learner.replay_size": [2, 8]}, {"learner.candidates": [2, 8]}]
    write("late.yaml", {"experiment": {**EXPERIMENT, "learner": learner}, "stages": stages, "metric": "FM"})
    plan = read_plan("late.yaml")
    out = Path("out")
    for size, forgets in ((2, 9.0), (8, 1.0)):  # so that the larger draw is chosen
        leave_result(make_point(plan, {"learner.replay_size": size}), FM=forgets)
    search = Search(plan, out, CPU, Placement(jobs=1)).run()
    assert [point.options["learner.candidates"] for point in search.stages[1]] == [8, 2]
    (refused,) = read_search(out)["stages"][1]["points"][1:]
    assert refused["options"] == {"learner.replay_size": 8, "learner.candidates": 2}
    assert "candidates: 2 is not 8 or more" in refused["failed"]
    assert read_search(out)["chosen"] == {"learner.replay_size": 8, "learner.candidates": 8}


def test_another_search_or_another_process_is_refused(capsys) -> None:
    """Or one that was started on another device."""
    write("a.yaml", {"experiment": EXPERIMENT, "grid": {"learner.lr": [0.1]}})
    plan, out = read_plan("a.yaml"), Path("out")
    with RunFolder(out).locked(), pytest.raises(ValueError, match=r"^out: .*--out$"):
        Search(plan, out, CPU).run()
    Path("there").mkdir()
    wide = {
        "experiment": {**EXPERIMENT, "learner": {**EXPERIMENT["learner"], "encoder": {"width": 3}}},
        "grid": {"learner.lr": [0.1]},
    }
    leave_result(make_point(read_plan(write("there/a.yaml", wide)), {"learner.lr": 0.1}))
    with pytest.raises(
        ValueError, match=r"out/points/lr=0.1/seed-0: .*learner.encoder.width is 3 there, 2 here.*--out$"
    ):
        Search(plan, out, CPU).run()
    Path("out/search.json").write_text('{"environment": {"device": "cuda"}}')
    with pytest.raises(ValueError, match=r"^--device: this search was started on cuda; .*--out$"):
        Search(plan, out, CPU).run()


def test_shards_of_a_search_are_one_search(capsys) -> None:
    """A stage begins once all shards have finished the one before it; a call without --shard chooses."""
    words = (write("tiny.yaml", TINY), "--out", "out", "--jobs", "1")
    assert [run_search(*words, "--shard", f"{number}/2") for number in (1, 2, 1)] == [0, 0, 0]
    lines = [line for line in capsys.readouterr().out.splitlines() if "shard" in line]
    assert ["runs more" in line for line in lines] == [True, True, False], lines
    assert [line.count("stage 1") + 2 * line.count("stage 2") for line in lines] == [1, 2, 2], lines
    assert not Path("out/search.json").exists() and not Path("out/chosen.yaml").exists()
    assert run_search(*words) == 0
    assert run_search("tiny.yaml", "--out", "whole", "--jobs", "1") == 0
    assert figures("out") == figures("whole")


def point_with(mean: float | None, **options: Any) -> Point:
    return Point(options, None, options, mean=mean, failed="diverged" if mean is None else None)


@pytest.mark.parametrize(("metric", "size"), [("ACC", 6), ("FM", 7)])
def test_the_best_is_the_first_of_equals(metric: str, size: int) -> None:
    values = {4: 1.0, 5: 1.0, 6: 3.0, 7: 0.0, 8: 3.0, 9: 0.0}  # FM: less is better
    content = {"experiment": EXPERIMENT, "grid": {"learner.replay_size": list(values)}, "metric": metric}
    plan = read_plan(write("equals.yaml", content))
    for replay_size, value in values.items():
        leave_result(make_point(plan, {"learner.replay_size": replay_size}), **{metric: value})
    assert Search(plan, Path("out"), CPU, Placement(jobs=1)).run().chosen[0].options == {"learner.replay_size": size}


@pytest.mark.parametrize(("metric", "order"), [("ACC", ["b", "a", "c"]), ("FM", ["a", "b", "c"])])
def test_the_table_is_sorted_by_the_metric(metric: str, order: list[str]) -> None:
    points = [point_with(None, name="c"), point_with(1.0, name="a"), point_with(2.0, name="b", more="x")]
    table = stage_table("title", points, points[1], metric)
    assert [str(cell) for cell in table.columns[0].cells] == order
    notes = [str(cell) for cell in table.columns[-1].cells]
    assert notes[-1] == "diverged" and notes[order.index("a")] == "chosen"


def test_a_table_of_eight_options_is_readable_at_120_columns() -> None:
    plan = read_plan("beyond-ta-slow")
    points = [make_point(plan, values) for values in plan.stages[0]]
    for point in points:
        point.mean, point.spread, point.seconds = 61.234, 1.234, 12345.6
    console = Console(width=120)
    with console.capture() as printed:
        console.print(stage_table("title", points, points[1], "ACC"))
    first, second, _, *rows, last = [line.split() for line in printed.get().splitlines()[1:]]
    assert first == ["inner_"]
    assert second[:7] == ["rounds", "optimizer", "steps", "lr", "slow.statistics", "normalisation", "source"]
    assert [row[:7] for row in rows] == [[str(value) for value in point.options.values()][:7] for point in points]
    assert [row[7:] for row in rows[:2]] == [["61.23", "1.23", "12345.6"], ["61.23", "1.23", "12345.6", "chosen"]]
    assert last == ["all", "points:", "soft_labels.statistics", "running"]


def test_options_with_the_same_last_name_are_named_in_full() -> None:
    points = [Point({}, None, {"benchmark.size": 1, "learner.size": size}, mean=1.0) for size in (1, 2)]
    table = stage_table("title", points, points[0], "ACC")
    assert str(table.columns[0].header) == "learner.size" and str(table.caption) == "all points: benchmark.size 1"


def test_folders_have_readable_names_that_differ() -> None:
    assert folder_name({"learner.lr": 0.1, "batch_size": 4}) == "lr=0.1,batch_size=4"
    assert folder_name({"a.lr": 1, "b.lr": 2}) == "a.lr=1,b.lr=2"
    odd = [folder_name({"learner.root": text}) for text in ("a/b", "a b", "ä", "../x", "a" * 300, "a" * 301)]
    assert len(set(odd)) == len(odd)
    assert all("/" not in name and " " not in name and name.isascii() and len(name) < 120 for name in odd)


def test_on_a_terminal_there_is_a_bar() -> None:
    console = Console(force_terminal=True, record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    live = RowsDisplay(console)
    live.begin("stage 1/1", todo=1, total=2)
    live.run_ended("lr 0.1 [b], seed 0: ACC 50.00")
    live.end()
    text = console.export_text()
    console.file.close()
    assert "lr 0.1 [b], seed 0: ACC 50.00" in text and "2/2" in text
