"""What `run`, `search` and `reproduce` share: rows x seeds in processes, resumed, repaired and trained side by side."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import BENCHMARK
from forked import CommandLine, forked
from run_fixtures import CPU, log_of, result_of

from dualnet import cli
from dualnet.data.procedural import Procedural
from dualnet.experiments.stop import Stop
from dualnet.jobs.job import Executor, Job, JobResult, run_job
from dualnet.jobs.rows import Row, RowRunner
from dualnet.jobs.shard import Shard

COMMANDS = ("run", "search", "reproduce")
# A learner whose seeds 1 to 4 raise, kill or stop their process, or diverge, unless a file exists.
FRAGILE = """
import os, signal, time
import torch
from pathlib import Path
from dualnet import Finetune

class Fragile(Finetune):
    def learn(self, batch):
        print("a learner may print")
        seed, losses = self.generator.initial_seed(), super().learn(batch)
        if not Path("repaired").exists():
            if seed == 1:
                raise RuntimeError("no\\nluck " * 1000)
            if seed == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if seed == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            if seed == 4:
                losses["labels"] = losses["labels"] * torch.nan
        return losses

class Slow(Finetune):
    def learn(self, batch):
        time.sleep(0.05 * Path("slow").exists())
        return super().learn(batch)
"""
REASONS = ("RuntimeError: no luck", "SIGKILL, as the system does when memory runs out", "told to stop", "not finite")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("fragile.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    assert children(os.getpid()) == [], "a process was left behind"


def children(parent: int) -> list[int]:
    """Processes of jobs, each in a session of its own, below the server that they are forked from."""
    words = ["ps", "-A", "-ww", "-o", "pid=,ppid=,sess="]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    parents = {int(pid): (int(ppid), int(session)) for pid, ppid, session in map(str.split, shown.splitlines())}
    return [pid for pid, (ppid, own) in parents.items() if pid == own and parents.get(ppid, (0, 0))[0] == parent]


def is_there(process: int) -> bool:
    """Whether a process is running; a zombie is not."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return bool(shown.stdout.strip()) and not shown.stdout.startswith("Z")


def one_row(command: str, learner: str, seeds: int, train_per_class: int = 6) -> tuple[list[str], Path]:
    """The words of a command that runs one row with these seeds, and the folder of its runs."""
    experiment = {
        "benchmark": {**BENCHMARK, "train_per_class": train_per_class},
        "learner": {"name": learner, "encoder": {"width": 2}, "updates": 1},
        "batch_size": 4,
        "log_every": 1,
        "checkpoint_every": 2,
    }
    numbers = list(range(seeds))
    content, folder, words = {
        "run": (experiment, "out", ["--seeds", f"0-{seeds - 1}"]),
        "search": (
            {"experiment": experiment, "grid": {"learner.lr": [0.01]}, "seeds": numbers},
            "out/points/lr=0.01",
            ["--jobs", "1"],
        ),
        "reproduce": (
            {"seeds": seeds, "groups": {"g": {"rows": {"row": experiment}}}},
            "out/plan/g/row",
            ["--jobs", "1"],
        ),
    }[command]
    Path("plan.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return [command, "plan.yaml", "--device", "cpu", "--out", "out", *words], Path(folder)


def finished(folder: Path) -> list[int]:
    return sorted(int(file.parent.name.removeprefix("seed-")) for file in folder.glob("seed-*/result.json"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_fails_costs_itself_and_is_tried_again_unless_it_diverged(command: str, capsys) -> None:
    words, folder = one_row(command, "fragile.Fragile", seeds=5)
    assert cli.main(words) == 1
    err = capsys.readouterr().err
    assert finished(folder) == [0]
    for seed, reason in enumerate(REASONS, 1):
        (line,) = (line for line in err.splitlines() if f"seed {seed}: failed, " in line)
        assert reason in line and len(line) < 1000
    if command == "search":
        log = Path("out/processes.log").read_text()
        assert "Traceback" in log and "a learner may print" in log and "out/processes.log" in err.splitlines()[-1]
    before = (folder / "seed-0/result.json").stat().st_mtime_ns
    Path("repaired").touch()
    assert cli.main(words) == 1
    assert finished(folder) == [0, 1, 2, 3] and (folder / "seed-0/result.json").stat().st_mtime_ns == before
    assert (
        "seed-4: loss 'labels' is not finite"
        in capsys.readouterr().err.splitlines()[-1 if command != "reproduce" else -2]
    )
    shutil.rmtree(folder / "seed-4")
    assert cli.main(words) == 0
    assert finished(folder) == [0, 1, 2, 3, 4]


def content(out: Path, run_state: Callable[[Path], Any]) -> dict[str, Any]:
    """Everything that two equal commands leave behind, without times and machines."""
    texts = {str(file): file.read_text() for file in sorted(out.rglob("*")) if file.suffix in (".yaml", ".json")}
    of_time = r'"?(seconds|peak_memory_bytes|log_bytes|digest|threads|processes)"?: [^,\n]*'
    kept = {name: re.sub(of_time, "", text) for name, text in texts.items() if "checkpoint" not in name}
    runs = [file.parent for file in sorted(out.rglob("result.json"))]
    logs = [[{**event, "seconds": 0} for event in log_of(folder)] for folder in runs]
    states = [run_state(folder) for folder in runs if (folder / "checkpoint").exists()]
    return {**{name: text for name, text in kept.items() if "ledger" not in name}, "logs": logs, "states": states}


@pytest.mark.parametrize(
    ("number", "command"), [*((signal.SIGKILL, command) for command in COMMANDS), (signal.SIGINT, "search")]
)  # to SIGINT `run` is tested in experiments/test_resume.py
def test_stopped_and_resumed_leaves_the_files_of_never_stopped(number: int, command: str, run_state) -> None:
    words, folder = one_row(command, "fragile.Slow", seeds=2, train_per_class=20)
    assert cli.main(words) == 0
    Path("out").rename("never")
    Path("slow").touch()
    process = CommandLine(*words)
    while not list(folder.glob("seed-*/checkpoint/step-*")):  # a run in the middle
        time.sleep(0.01)
    workers = children(process.pid)
    assert len(workers) == 1
    process.send_signal(number)
    code, said = process.rest()
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 130), said
    assert number == signal.SIGKILL or said.splitlines()[-1].startswith("dualnet: stopped; all runs are saved")
    late = time.monotonic() + 300
    while any(map(is_there, workers)):
        assert time.monotonic() < late, "orphans"
        time.sleep(0.01)
    assert finished(folder) == [], "not stopped in the middle"
    Path("slow").unlink()
    assert cli.main(words) == 0
    resumed = content(Path("out"), run_state)
    Path("out").rename("resumed")
    Path("never").rename("out")
    assert content(Path("out"), run_state) == resumed
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert cli.main(words) == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before, "finished runs are left alone"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_seed_of_other_images_is_refused_before_another_runs(command: str, error_line) -> None:
    words, folder = one_row(command, "finetune", seeds=2)
    assert cli.main(words) == 0
    experiment = folder / "seed-0/experiment.yaml"
    experiment.write_text(re.sub(r"\n  split: \w+", "\n  split: '0'", experiment.read_text()))
    (folder / "seed-1/result.json").unlink()
    assert "seed-0: was started with other images or classes" in error_line(*words)
    assert finished(folder) == [0]


def results(out: Path) -> dict[str, Any]:
    results = {file.parent: result_of(file.parent) for file in sorted(out.rglob("result.json"))}
    return {str(folder.relative_to(out)): (result["accuracy"], result["cost"]) for folder, result in results.items()}


def test_rows_side_by_side_equal_rows_one_by_one() -> None:
    words = ["reproduce", "small-table-1", "--rows", "task-aware/er,task-aware/derpp", "--seeds", "2"]
    words += ["--benchmark.train_per_class", "4", "--benchmark.test_per_class", "3", "--learner.encoder.width", "2"]
    assert cli.main([*words, "--device", "cpu", "--out", "apart"]) == 0
    assert cli.main([*words, "--device", "cpu", "--out", "together", "--side-by-side", "3"]) == 0
    assert results(Path("apart")) == results(Path("together")) and len(results(Path("apart"))) == 4
    sizes = [result_of(file.parent)["seeds_side_by_side"] for file in Path("together").rglob("result.json")]
    assert sorted(sizes) == [1, 3, 3, 3]


class Here(Executor):
    """Runs jobs in this process, and keeps them."""

    def __init__(self) -> None:
        self.waiting: list[Job] = []
        self.done: list[Job] = []

    def submit(self, job: Job) -> None:
        self.waiting.append(job)

    def collect(self, stop: Stop) -> Iterator[tuple[Job, JobResult]]:
        while self.waiting and not stop.requested:
            job = self.waiting.pop(0)
            self.done.append(job)
            yield job, run_job(job)

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def row(tiny) -> Callable[..., Row]:
    def make(name: str, learner: Any = "er", seeds: int = 1, **options: Any) -> Row:
        return Row(name, tiny(learner, **options), range(seeds), Path("out", name))

    return make


def names_in_jobs(jobs: Iterator[Job]) -> list[list[str]]:
    return [[str(folder.relative_to("out")) for folder in job.runs] for job in jobs]


def test_runs_with_the_same_steps_are_one_job_on_cuda_and_apart_on_the_cpu(row) -> None:
    rows = [row("er", seeds=2), row("late", labels={"delay": 1}), row("mir", "mir"), row("offline", "offline")]
    missing = {folder: experiment for some in rows for folder, experiment in some.runs.items()}
    together = [["er/seed-0", "er/seed-1", "mir/seed-0"], ["late/seed-0"], ["offline/seed-0"]]
    assert names_in_jobs(RowRunner(Here(), torch.device("cuda")).jobs(missing)) == together
    assert names_in_jobs(RowRunner(Here(), torch.device("cuda"), 2).jobs(missing))[:2] == [
        together[0][:2],
        ["mir/seed-0"],
    ]
    assert len(names_in_jobs(RowRunner(Here(), CPU).jobs(missing))) == 5


def run_shard(rows: list[Row], number: int, count: int) -> None:
    executor = Here()
    runner = RowRunner(executor, CPU, side_by_side=2, shard=Shard(number, count))
    runner.run("rows", rows)
    Path(f"shard-{number}").write_text(",".join(str(folder) for job in executor.done for folder in job.runs))
    assert runner.failures == {}


def test_eight_shards_at_once_run_each_job_once(row) -> None:
    """Some runs are finished before; which shard runs a job does not depend on that."""
    rows = [
        row(f"er-{lr}", {"name": "er", "encoder": {"width": 2}, "lr": lr}, seeds=3) for lr in (0.01, 0.02, 0.03, 0.04)
    ]
    RowRunner(Here(), CPU).run("rows", rows[1:2])
    processes = [forked(run_shard, rows, number, 8) for number in range(1, 9)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    ran = [name for number in range(1, 9) for name in Path(f"shard-{number}").read_text().split(",") if name]
    missing = [str(folder) for some in (rows[0], *rows[2:]) for folder in some.runs]
    assert sorted(ran) == sorted(missing)
    assert all(finished(some.folder) == [0, 1, 2] for some in rows)
    assert Path("shard-1").read_text() == "out/er-0.01/seed-0,out/er-0.01/seed-1"  # two side by side


def test_runs_that_diverge_side_by_side_are_each_recorded(row, own_learner: str) -> None:
    rows = [row("diverges", {"name": own_learner, "loss_breaks_at": 1, "only_seed": 1}, 2), row("er")]
    runner = RowRunner(Here(), CPU, side_by_side=3)
    runner.run("rows", rows)
    assert list(runner.failed(rows)) == ["diverges"] and runner.failures == {}
    (reason,) = runner.failed(rows)["diverges"]
    assert reason.startswith("seed-1: loss 'labels' is not finite at step")
    assert finished(Path("out/diverges")) == finished(Path("out/er")) == [0]


def test_what_fails_side_by_side_is_tried_alone(row) -> None:
    rows = [row("raises", {"name": "fragile.Fragile", "encoder": {"width": 2}}, 2), row("er")]
    executor = Here()
    runner = RowRunner(executor, CPU, side_by_side=3)
    runner.run("rows", rows)
    assert [len(job.runs) for job in executor.done] == [3, 1, 1, 1]
    assert finished(Path("out/raises")) == finished(Path("out/er")) == [0]
    assert runner.failures[Path("out/raises/seed-1")].startswith("RuntimeError: no luck")


@pytest.mark.parametrize("kind", [OSError, RuntimeError, ValueError])
def test_a_benchmark_that_breaks_is_tried_once_and_does_not_stop_the_other_rows(kind, row, monkeypatch) -> None:
    make, calls = Procedural.make, []

    def breaks(config: Procedural) -> Any:
        calls.append(config.seed)
        if config.seed == 1:
            raise kind("broken disk")
        return make(config)

    monkeypatch.setattr(Procedural, "make", breaks)
    rows = [row("er"), row("other", seeds=2, benchmark={"seed": 1}), row("more", benchmark={"seed": 1})]
    runner = RowRunner(Here(), CPU)
    runner.run("rows", rows)
    assert runner.failed(rows) == {"other": ["broken disk"], "more": ["broken disk"]}
    assert finished(Path("out/er")) == [0] and calls.count(1) == 1
    with pytest.raises(ValueError, match="other: broken disk"):
        RowRunner(Here(), CPU).run("rows", rows[1:])
