"""Choosing options and reporting results stay apart: in the benchmark, in the run folder and in the report."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from run_fixtures import CPU

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.experiments import runner
from dualnet.experiments.runner import BenchmarkCache
from dualnet.report.find_runs import find_runs


@pytest.fixture(scope="module")
def validated(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on validation tasks. Not to be written to."""
    folder = tmp_path_factory.mktemp("search") / "seed-0"
    assert runner.run({folder: tiny("finetune")}, CPU, benchmarks=BenchmarkCache(validation=True)) == []
    return folder


@dataclass(frozen=True)
class Mixed(BenchmarkConfig):
    """A benchmark outside the package that returns validation tasks for test tasks and vice versa."""

    plain: BenchmarkConfig

    def make(self) -> Benchmark:
        return self.plain.make_validation()

    def make_validation(self) -> Benchmark:
        return self.plain.make()


@pytest.mark.parametrize("validation", [True, False])
def test_a_config_that_makes_the_wrong_kind_is_refused(validation, tiny, tmp_path: Path) -> None:
    experiment = replace(tiny(), benchmark=Mixed(tiny().benchmark))
    with pytest.raises(ValueError, match=r"benchmark\.validation is (True|False)"):
        runner.run({tmp_path / "out": experiment}, CPU, benchmarks=BenchmarkCache(validation))
    assert not (tmp_path / "out").exists()


def test_the_images_are_those_of_validation(tiny, validated: Path) -> None:
    names = runner.RunFolder(validated).record.stream["class_names"]
    assert names == list(tiny().benchmark.make_validation().class_names)
    assert not set(names) & set(tiny().benchmark.make().class_names)


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_serves_one_purpose(tiny, validated: Path, tmp_path: Path, finished: bool) -> None:
    runner.run({tmp_path: tiny("finetune")}, CPU)
    for folder in (validated, tmp_path):
        assert (folder / "result.json").exists()
    if not finished:
        (tmp_path / "result.json").unlink()
    with pytest.raises(ValueError, match="holds a run on the test tasks of an experiment; choose another --out"):
        runner.run({tmp_path: tiny("finetune")}, CPU, benchmarks=BenchmarkCache(validation=True))
    with pytest.raises(ValueError, match="holds a run on validation tasks, for a search; choose another --out"):
        runner.run({validated: tiny("finetune")}, CPU)


def test_the_report_leaves_validation_out(finished: Path, validated: Path) -> None:
    with pytest.warns(UserWarning, match="1 runs of a search are left out"):
        (run,) = find_runs([finished, validated])
    assert run.folder == finished
    with pytest.raises(ValueError, match=r"seed-0: .*search.json"):
        find_runs([validated])
