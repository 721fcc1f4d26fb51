"""Choosing and reporting stay apart: by type, by folder, and in the report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dualnet.report.runs import find_runs
from dualnet.runs import runner

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def validated(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on validation tasks. Not to be written to."""
    folder = tmp_path_factory.mktemp("search") / "seed-0"
    assert runner.validate(tiny("finetune"), {0: folder}, CPU) == []
    return folder


def test_a_run_refuses_validation_tasks(tiny, tmp_path: Path) -> None:
    tasks = tiny().benchmark.make_validation()
    with pytest.raises(TypeError, match="ValidationTasks where Benchmark is needed: options are chosen on Valid"):
        runner.run(tiny(), {0: tmp_path / "out"}, CPU, benchmark=tasks)
    assert not (tmp_path / "out").exists()


def test_a_search_refuses_a_benchmark(tiny, benchmark, tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"^Benchmark where ValidationTasks is needed: .* results come from a Benchmark"
    ):
        runner.validate(tiny(), {0: tmp_path / "out"}, CPU, tasks=benchmark)
    assert not (tmp_path / "out").exists()


MIXED = """
from pathlib import Path
import torch
from dualnet.data import Procedural
from dualnet.runs import runner
from dualnet.runs.experiment import read

experiment, here, cpu = read("demo-er"), {0: Path("here")}, torch.device("cpu")
runner.run(experiment, here, cpu, benchmark=Procedural().make())
runner.run(experiment, here, cpu, benchmark=Procedural().make_validation())  # mixed
runner.validate(experiment, here, cpu, tasks=Procedural().make_validation())
runner.validate(experiment, here, cpu, tasks=Procedural().make())  # mixed
"""


def test_mixing_is_a_type_error(tmp_path: Path) -> None:
    file = tmp_path / "mixed.py"
    file.write_text(MIXED)
    root = Path(runner.__file__).parents[3]
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{root / "src"}"]}}')
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--project", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if " errors, " not in done.stdout:
        pytest.skip("pyright does not run here: it fetches itself when it is first used")
    mixed = [number for number, line in enumerate(MIXED.splitlines(), 1) if line.endswith("# mixed")]
    found = [line for line in done.stdout.splitlines() if " - error: " in line]
    assert [int(line.split(":")[1]) for line in found] == mixed, done.stdout + done.stderr
    assert all("cannot be assigned to parameter" in line for line in found)


def test_the_images_are_those_of_validation(tiny, validated: Path) -> None:
    names = runner.RunFolder(validated).read()["stream"]["class_names"]
    assert names == list(tiny().benchmark.make_validation().class_names)
    assert not set(names) & set(tiny().benchmark.make().class_names)


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_serves_one_purpose(tiny, benchmark, validated: Path, tmp_path: Path, finished: bool) -> None:
    runner.run(tiny("finetune"), {0: tmp_path}, CPU, benchmark=benchmark)
    for folder in (validated, tmp_path):
        assert (folder / "result.json").exists()
    if not finished:
        (tmp_path / "result.json").unlink()
    with pytest.raises(ValueError, match="holds a run on the test tasks of an experiment; choose another --out"):
        runner.validate(tiny("finetune"), {0: tmp_path}, CPU)
    with pytest.raises(ValueError, match="holds a run on validation tasks, for a search; choose another --out"):
        runner.run(tiny("finetune"), {0: validated}, CPU, benchmark=benchmark)


def test_the_report_leaves_validation_out(finished: Path, validated: Path) -> None:
    with pytest.warns(UserWarning, match="1 runs of a search are left out: they are on validation tasks"):
        (run,) = find_runs([finished, validated])
    assert run.folder == finished
    with pytest.raises(
        ValueError, match=r"seed-0: a run of a search, on validation tasks; see the search's search.json"
    ):
        find_runs([validated])
