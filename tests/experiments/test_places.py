"""Moved images: a run is resumed if the same images are in another folder, and refused with other images."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import class_folders
from forked import CommandLine
from PIL import Image
from run_fixtures import CPU, seeds_in

from dualnet import cli
from dualnet.experiments import runner
from dualnet.experiments.experiment import Experiment, parse
from dualnet.experiments.stop import StopRequested
from dualnet.report.rows import compare

OTHER = r".* other images or classes \(benchmark.root is images there, other here\)"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`images`, and `other` with the same names and other pixels: no digest of names tells them apart."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("warnings.showwarning", cli.show_warning)
    class_folders(per_class=5)
    class_folders(per_class=5, root="other", seed=1000)


def options(root: str = "images", **more: Any) -> dict[str, Any]:
    return {"name": "image_folder", "root": root, "classes_per_task": 2, "image_size": 28, **more}


@pytest.fixture
def on(tiny: Callable[..., Experiment]) -> Callable[..., Experiment]:
    """on(root): the tiny experiment on a folder of images."""

    def make(root: str = "images", **more: Any) -> Experiment:
        mapping = tiny("er", checkpoint_every=1).mapping() | {"benchmark": options(root, **more)}
        return parse(mapping)

    return make


def moved() -> dict[str, Any]:
    """Another folder, the same images."""
    shutil.move("images", "moved")
    return {"root": "moved"}


MOVES: dict[str, Callable[[], dict[str, Any]]] = {
    "a slash": lambda: {"root": "images/"},
    "from the root": lambda: {"root": str(Path("images").resolve())},
    "moved": moved,
    "another cache": lambda: {"root": "images", "cache": "elsewhere"},
}


@pytest.mark.parametrize("way", MOVES)
def test_a_stopped_run_goes_on_with_the_same_images(way: str, on, run, stop_at, run_state) -> None:
    never_stopped = run_state(run(on(), Path("whole")))
    with pytest.raises(StopRequested):
        run(on(), Path("run"), stop_at(3))
    assert run_state(run(on(**MOVES[way]()), Path("run"))) == never_stopped


def test_a_stopped_run_does_not_go_on_with_other_images(on, run, stop_at) -> None:
    with pytest.raises(StopRequested):
        run(on(), Path("run"), stop_at(3))
    with pytest.raises(ValueError, match=rf"^run: {OTHER}"):
        run(on("other"), Path("run"))


def test_other_images_for_testing_are_refused(on, run, stop_at) -> None:
    class_folders(per_class=5, root="test", seed=2000)
    with pytest.raises(StopRequested):
        run(on(test_root="test"), Path("run"), stop_at(3))
    with pytest.raises(ValueError, match=r"other images or classes \(benchmark.test_root is test there, other here\)"):
        run(on(test_root="other"), Path("run"))
    shutil.copytree("test", "copy")
    run(on(test_root="copy"), Path("run"))


def test_a_finished_run_is_not_that_of_other_images(on, run) -> None:
    """Nothing is left to do, but the result is not that of these images."""
    run(on(), Path("out/seed-0"))
    with pytest.raises(ValueError, match=rf"^out/seed-0: {OTHER}"):
        run(on("other"), Path("out/seed-0"))
    with pytest.raises(ValueError, match=rf"^out/seed-0: {OTHER}"):
        runner.run(seeds_in(Path("out"), on("other"), 0, 1), CPU)
    assert not Path("out/seed-1").exists()
    assert runner.run({Path("out/seed-0"): on(**moved())}, CPU) == [Path("out/seed-0")]


def test_a_signal_while_images_are_decoded_is_one_line(on) -> None:
    """A real process, as soon as it has begun to write its cache."""
    Image.effect_noise((1000, 1000), 90).convert("RGB").save("images/a/large.png", compress_level=0)
    for n in range(100):
        os.link("images/a/large.png", f"images/a/large-{n}.png")
    Path("mine.yaml").write_text(yaml.safe_dump(on().mapping()))
    process = CommandLine("run", "mine.yaml", "--out", "out", "--device", "cpu", DUALNET_CACHE="fresh")
    while process.poll() is None and not any(path.stat().st_size for path in Path("fresh").glob("*.tmp")):
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    code, err = process.rest()
    assert code == 130, err
    assert err.splitlines()[-1].startswith("dualnet: stopped") and err.count("dualnet: ") == 1 and "Trace" not in err
    assert not list(Path("fresh").rglob("*.tmp"))


@pytest.mark.usefixtures("plots_unsaved")
def test_the_report_tells_the_folders_apart(on, run) -> None:
    run(on(), Path("out/seed-0"))
    run(on("other").with_seed(1), Path("out/seed-1"))
    run(on(cache="elsewhere").with_seed(2), Path("out/seed-2"))
    assert seeds_by_row() == [["0", "2"], ["1"]]


@pytest.mark.usefixtures("plots_unsaved")
def test_the_report_knows_images_that_have_moved(on, run) -> None:
    run(on(), Path("out/seed-0"))
    run(on(**moved()).with_seed(1), Path("out/seed-1"))
    assert seeds_by_row() == [["0", "1"]]


def seeds_by_row() -> list[list[str]]:
    return [[run.seed for run in row.runs] for row in compare([Path("out")]).rows]


def test_the_ledger_joins_seeds_from_before_and_after_a_move() -> None:
    learner = {"name": "er", "encoder": {"width": 2}, "updates": 1, "replay_size": 4}
    experiment = {"benchmark": options(), "learner": learner, "batch_size": 4}
    Path("table.yaml").write_text(yaml.safe_dump({"shared": experiment, "groups": {"g": {"rows": {"er": {}}}}}))
    words = ["reproduce", "table.yaml", "--out", "out", "--device", "cpu", "--benchmark.root"]
    assert cli.main([*words, "images"]) == 0
    shutil.move("images", "moved")
    assert cli.main([*words, "moved", "--seeds", "2"]) == 0
    (row,) = json.loads(Path("out/table/ledger.json").read_text())["rows"]
    assert row["seeds"] == [0, 1]
