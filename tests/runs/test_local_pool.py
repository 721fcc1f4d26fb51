"""The pool of processes: each job has its own, whatever ends it is told, and nothing is left behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

from dualnet.runs.jobs import Job, JobResult
from dualnet.runs.local_pool import LocalPool, ended
from dualnet.runs.stop import Stop

LEARNERS = """
import os, signal, time
import torch
from dualnet import Finetune

class Large(Finetune):
    def learn(self, batch):
        self.much = torch.ones(300 * 2**18)  # 300 MiB
        return super().learn(batch)

class Exits(Finetune):
    def learn(self, batch):
        raise SystemExit(3)

class Killed(Finetune):
    def learn(self, batch):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool_learners.py").write_text(LEARNERS)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def job(tiny):
    def make(name: str, learner: str = "finetune", device: str = "cpu") -> Job:
        experiment = tiny({"name": learner, "width": 2, "updates": 1})
        return Job(name, experiment.mapping(), {0: Path(name) / "seed-0"}, device)

    return make


def run(jobs: list[Job], size: int = 1) -> dict[str, JobResult]:
    with Stop() as stop, LocalPool(size, 1, Path("log")) as pool:
        return {job.name: result for job, result in pool.run(jobs, stop)}


def test_each_job_has_its_own_process_and_peak_of_memory(job) -> None:
    found = run([job("large", "pool_learners.Large"), job("exits", "pool_learners.Exits"), job("small")])
    assert {name: result.status for name, result in found.items()} == {
        "large": "finished",
        "exits": "failed",
        "small": "finished",
    }
    large, small = (json.loads((Path(name) / "seed-0/result.json").read_text()) for name in ("large", "small"))
    assert large["peak_memory_bytes"] - small["peak_memory_bytes"] > 250 * 2**20


def test_a_process_that_dies_costs_its_job_only(job) -> None:
    found = run([job("killed", "pool_learners.Killed"), job("a"), job("b")], size=2)
    assert "SIGKILL" in found["killed"].reason
    assert [found[name].status for name in ("a", "b")] == ["finished", "finished"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is not there")
def test_a_job_for_cuda_finds_it_untouched_in_its_process(job) -> None:
    found = run([job("one", device="cuda"), job("two", device="cuda"), job("cpu")])
    assert [found[name].status for name in ("one", "two", "cpu")] == ["failed", "failed", "finished"]
    assert "CUDA" in found["one"].reason and found["one"] == found["two"]


def test_once_a_stop_is_requested_no_job_is_started(job) -> None:
    with Stop() as stop, LocalPool(1, 1, Path("log")) as pool:
        stop.asked = True
        assert list(pool.run([job("a")], stop)) == []
    assert not Path("a").exists()


def test_a_stop_while_a_process_is_starting_is_not_lost(job) -> None:
    """The first signal comes long before the job runs."""
    with Stop() as stop, LocalPool(1, 1, Path("log")) as pool:
        pool.start(job("a"))
        stop.asked = True
        assert [result.status for _, result in pool.run([job("b")], stop)] == ["stopped"]
    assert not Path("b").exists()


def test_how_a_process_has_ended() -> None:
    assert ended(-signal.SIGTERM).status == "stopped"
    assert "SIGSEGV" in ended(-signal.SIGSEGV).reason and "code 3" in ended(3).reason
