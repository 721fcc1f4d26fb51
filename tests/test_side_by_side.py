"""Rows that are trained side by side have the results of rows that are run one by one."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from benchmarks import side_by_side
from dualnet import reproduce
from dualnet.experiments.runner import run
from dualnet.options import dotted

TINY = [
    *("--benchmark.train_per_class", "4", "--benchmark.test_per_class", "3"),
    *("--learner.width", "2", "--device", "cpu"),
]
ROWS = "task-aware/er,task-aware/derpp"
SMALL = ["--table", "small-table-1"]


def results(out: Path) -> dict[str, object]:
    found = {file.parent: json.loads(file.read_text()) for file in out.rglob("result.json")}
    return {str(folder.relative_to(out)): (result["accuracy"], result["cost"]) for folder, result in found.items()}


def test_rows_side_by_side_equal_rows_one_by_one(tmp_path: Path) -> None:
    side_by_side.main([ROWS, *SMALL, "--seeds", "0,1", "--out", f"{tmp_path}/b", *TINY])
    for row in reproduce.select(reproduce.read_rows("small-table-1"), ROWS.split(",")):
        folders = {seed: tmp_path / f"a/{row.name}/seed-{seed}" for seed in (0, 1)}
        run(row.experiment(dotted(TINY[:-2])), folders, torch.device("cpu"))
    assert results(tmp_path / "a") == results(tmp_path / "b")
    assert len(results(tmp_path / "a")) == 4


def test_each_seed_may_have_its_own_class_order(tmp_path: Path) -> None:
    options = [*TINY[:4], "--benchmark.order_seed", "seed", *TINY[4:]]
    side_by_side.main(["task-aware/er", *SMALL, "--seeds", "0,1", "--out", f"{tmp_path}/b", *options])
    (row,) = reproduce.select(reproduce.read_rows("small-table-1"), ["task-aware/er"])
    folders = {seed: tmp_path / f"a/{row.name}/seed-{seed}" for seed in (0, 1)}
    run(row.experiment(dotted(options[:-2])), folders, torch.device("cpu"))
    assert results(tmp_path / "a") == results(tmp_path / "b") and len(results(tmp_path / "a")) == 2


def test_what_takes_too_long_is_stopped_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    side_by_side.main([ROWS, *SMALL, "--seconds", "0", "--out", f"{tmp_path}/b", *TINY])
    assert list(results(tmp_path / "b")) == ["small-table-1/task-aware/er/seed-0"], "the last row was stopped"
    shown = capsys.readouterr()
    assert shown.out.count("stopped for lack of time") == 1 and "2 rows, 2 runs: " in shown.err
    side_by_side.main([ROWS, *SMALL, "--out", f"{tmp_path}/b", *TINY])
    side_by_side.main([ROWS, *SMALL, "--out", f"{tmp_path}/a", *TINY])
    assert results(tmp_path / "a") == results(tmp_path / "b")


def test_rows_of_two_streams_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="another stream"):
        side_by_side.main(["*/er", *SMALL, "--out", str(tmp_path), *TINY])


def test_seeds_whose_tasks_have_other_sizes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the class order of each seed, where a class has more images than the others."""
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    for number in range(4):
        for image in range(3 + 2 * (number == 0)):
            path = tmp_path / f"images/{number}/{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (28, 28), (60 * number, 40 * image, 0)).save(path)
    table = {"shared": {"benchmark": {"name": "image_folder", "root": f"{tmp_path}/images", "classes_per_task": 2,
             "image_size": 28, "order_seed": "seed"}, "learner": {"name": "er", "width": 2}}, "title": "orders",
             "groups": {"a": {"rows": {"er": {}}}}}  # fmt: skip
    (tmp_path / "orders.yaml").write_text(json.dumps(table))
    words = ["a/er", "--table", f"{tmp_path}/orders.yaml", "--seeds", "8", "--out", f"{tmp_path}/out"]
    with pytest.raises(SystemExit, match="another stream"):
        side_by_side.main([*words, "--device", "cpu"])
    assert not (tmp_path / "out").exists()


def test_every_run_that_diverges_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="finite"):
        side_by_side.main([ROWS, *SMALL, "--seeds", "0,", "--out", str(tmp_path), *TINY, "--learner.lr", "1e30"])
    err = capsys.readouterr().err
    assert "er seed 0: diverged" in err and "derpp seed 0: diverged" in err


def test_a_row_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no such row"):
        side_by_side.main(["n-21", "--out", str(tmp_path)])
