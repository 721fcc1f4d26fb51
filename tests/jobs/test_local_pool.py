"""The pool of processes: one per job, the reason if it ends early, and no process left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import environment
from forked import CommandLine, forked
from PIL import Image
from run_fixtures import result_of

from dualnet.experiments.stop import Stop
from dualnet.jobs.job import Job, JobResult
from dualnet.jobs.local_pool import PRELOAD, LocalPool, processes, result_of_exit, start_server

LEARNERS = """
import torch
from dualnet import Finetune

class Large(Finetune):
    def learn(self, batch):
        self.much = torch.ones(300 * 2**18)  # 300 MiB
        return super().learn(batch)

class Exits(Finetune):
    def learn(self, batch):
        raise SystemExit(3)

initialized = torch.cuda.is_initialized()  # imported when the job begins

class Untouched(Finetune):
    def learn(self, batch):
        assert not initialized
        return super().learn(batch)
"""
# Imports some modules and prints which functions of CUDA they called.
IMPORT = """
import sys, torch
called = []
for name in ("is_available", "device_count", "_lazy_init"):
    setattr(torch.cuda, name, lambda *_, name=name: called.append(name))
for module in sys.argv[1:]:
    __import__(module)
print(called)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool_learners.py").write_text(LEARNERS)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def job(tiny):
    def make(name: str, learner: str = "finetune", device: str = "cpu") -> Job:
        experiment = tiny({"name": learner, "encoder": {"width": 2}, "updates": 1})
        return Job({Path(name) / "seed-0": experiment.mapping()}, device)

    return make


def collected(pool: LocalPool, stop: Stop, *jobs: Job) -> list[tuple[Job, JobResult]]:
    for job in jobs:
        pool.submit(job)
    return list(pool.collect(stop))


def run(jobs: list[Job], size: int = 1) -> dict[str, JobResult]:
    with Stop() as stop, LocalPool(size, 1, Path("log")) as pool:
        return {next(iter(job.runs)).parent.name: result for job, result in collected(pool, stop, *jobs)}


def test_each_job_has_its_own_process_and_peak_of_memory(job) -> None:
    results = run([job("large", "pool_learners.Large"), job("exits", "pool_learners.Exits"), job("small")])
    assert {name: result.status for name, result in results.items()} == {
        "large": "finished",
        "exits": "failed",
        "small": "finished",
    }
    large, small = (result_of(Path(name) / "seed-0") for name in ("large", "small"))
    assert large["peak_memory_bytes"] - small["peak_memory_bytes"] > 250 * 2**20


def test_a_job_does_not_repeat_warnings_of_ignored_files(tiny) -> None:
    """The parent has read the same folder."""
    for name in ("images/a", "images/b", "images/__MACOSX"):
        Path(name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(f"{name}/{number}.png")
    Path("images/a/notes.txt").touch()
    Path("images/b/empty.png").touch()
    benchmark = {"name": "image_folder", "root": "images", "classes_per_task": 2, "image_size": 28, "on_error": "skip"}
    experiment = tiny({"name": "finetune", "encoder": {"width": 2}, "updates": 1}).mapping() | {"benchmark": benchmark}
    results = run([Job({Path("quiet/seed-0"): experiment}, "cpu")])
    assert results["quiet"] == JobResult("finished") and Path("log").read_text() == ""


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))],
)
def test_jobs_find_cuda_untouched(device: str, job) -> None:
    results = run([job(name, "pool_learners.Untouched", device) for name in ("one", "two")])
    assert [results[name] for name in ("one", "two")] == [JobResult("finished")] * 2


def test_what_the_server_imports_does_not_touch_cuda() -> None:
    words = [sys.executable, "-c", IMPORT, *PRELOAD]
    assert subprocess.run(words, env=environment(), capture_output=True, text=True, check=True).stdout == "[]\n"


def start_twice() -> None:
    """Exits with code 0 if a start of the server sets and restores two variables, and nothing is left of it."""
    os.environ.pop("PYTHONSAFEPATH", None)
    os.environ["PYTHONPATH"] = "before"
    before, mask = dict(os.environ), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    changed: list[str] = []

    def note(event: str, values: tuple[Any, ...]) -> None:
        if event in ("os.putenv", "os.unsetenv"):
            changed.append(os.fsdecode(values[0]))

    sys.addaudithook(note)
    start_server()
    start_server()
    assert sorted(changed) == ["PYTHONPATH"] * 2 + ["PYTHONSAFEPATH"] * 2, changed
    assert os.environ == before and signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def test_the_environment_is_changed_once_and_little() -> None:
    process = forked(start_twice)
    process.join()
    assert process.exitcode == 0


def test_a_signal_to_the_whole_group_while_the_server_imports_is_a_stop(job) -> None:
    (experiment,) = job("a").runs.values()
    Path("plan.yaml").write_text(yaml.safe_dump({"experiment": experiment, "grid": {"learner.lr": [0.1]}}))
    process = CommandLine("search", "plan.yaml", "--out", "out", "--device", "cpu")
    wait_for_imports(process)
    os.killpg(process.pid, signal.SIGINT)
    code, text = process.rest()
    said = text.splitlines()
    assert code == 130, said
    assert len(said) == 2 and said[1].startswith("dualnet: stopped; "), said


def wait_for_imports(process: CommandLine) -> None:
    """Until the server that a process has started is importing PyTorch."""
    words = ["pgrep", "-P", str(process.pid), "-f", "forkserver"]
    while process.poll() is None:
        server = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
        if server and "libtorch_cpu" in Path(f"/proc/{server}/maps").read_text():
            return
        time.sleep(0.01)


def stop_without_server(job: Job) -> None:
    """Exits with code 0 if a stop ends the pool although its server is killed while it starts a job."""
    start_server()
    server: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(server, signal.SIGSTOP)
    with Stop() as stop, LocalPool(1, 1, Path("log")) as pool:

        def end() -> None:
            stop.requested = True
            os.kill(server, signal.SIGKILL)

        threading.Timer(0.3, end).start()
        assert collected(pool, stop, job) == []


def test_a_stop_that_has_ended_the_server_is_a_stop(job) -> None:
    process = forked(stop_without_server, job("a"))
    process.join()
    assert process.exitcode == 0


def test_a_stop_while_a_process_is_starting_is_not_lost(job) -> None:
    """The first signal comes long before the job runs."""
    with Stop() as stop, LocalPool(1, 1, Path("log")) as pool:
        pool.start(job("a"))
        stop.requested = True
        assert [result.status for _, result in collected(pool, stop, job("b"))] == ["stopped"]
    assert not Path("b").exists()


def test_a_process_that_ends_during_a_stop_is_stopped(job) -> None:
    """As by a signal to all processes that comes before the job can handle it: the same command tries it again."""
    with Stop() as stop, LocalPool(1, 1, Path("log")) as pool:
        pool.start(job("a", "pool_learners.Exits"))
        wait(list(pool.busy))
        stop.requested = True
        assert [result for _, result in collected(pool, stop)] == [JobResult("stopped")]


def test_how_a_process_has_ended() -> None:
    assert result_of_exit(-signal.SIGTERM).status == "stopped"
    assert "SIGSEGV" in result_of_exit(-signal.SIGSEGV).reason and "code 3" in result_of_exit(3).reason


def test_how_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualnet.jobs.local_pool.num_cores", lambda: 8)
    for given, expected in (("4", (2, 4)), ("1", (8, 1)), ("99", (1, None)), ("odd", (8, 1))):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert processes("cpu", None) == expected
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert (processes("cpu", None), processes("cpu", 3), processes("cpu", 1)) == ((8, 1), (3, 1), (1, None))
    assert (processes("cuda", None), processes("cuda", 2)) == ((1, None), (2, None))
