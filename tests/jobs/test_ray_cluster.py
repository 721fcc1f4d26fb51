"""A real Ray cluster of two nodes on this machine: what it leaves equals what local processes leave, bit by bit."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import CommandLine
from run_fixtures import result_of

from dualnet import cli
from dualnet.jobs.carried_runs import CarriedRuns, Copy

pytest.importorskip("ray", reason="needs dualnet[ray]")
TABLE = ["reproduce", "small-table-1", "--rows", "task-aware/er,task-aware/derpp", "--seeds", "0,1"]
TABLE += ["--benchmark.train_per_class", "40", "--benchmark.test_per_class", "3", "--learner.encoder.width", "2"]
TABLE += ["--learner.updates", "1", "--checkpoint_every", "5"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # of the token


@pytest.fixture
def cluster() -> Iterator[tuple[CommandLine, str]]:
    """`dualnet cluster` with two nodes of one CPU, and the words that use it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    process = CommandLine("cluster", "--nodes", "2", "--cpus", "1", "--port", port, both=True)
    line = process.output.readline()
    assert line.startswith("2 nodes of 1 CPUs"), line
    yield process, f"ray=127.0.0.1:{port}"
    process.send_signal(signal.SIGINT)
    code, said = process.rest()
    assert code == 0, said


def below(process: int) -> list[tuple[int, str]]:
    """The processes below a process with their command lines, those of the oldest first."""
    words = ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in shown.splitlines()]
    found, parents = [], {process}
    for pid, parent, *command in sorted(rows, key=lambda row: int(row[0])):
        if int(parent) in parents:
            parents.add(int(pid))
            found.append((int(pid), " ".join(command)))
    return found


def wait_for(condition: Callable[[], Any], process: CommandLine) -> Any:
    late = time.monotonic() + 300
    while not (value := condition()):
        assert process.poll() is None and time.monotonic() < late, process.rest()
        time.sleep(0.02)
    return value


def checkpoints(out: str) -> list[Path]:
    return sorted(Path(out).rglob("step-*.safetensors"))


def left(out: str, run_state: Callable[[Path], Any]) -> dict[str, Any]:
    runs = sorted(file.parent for file in Path(out).rglob("result.json"))
    return {
        str(run.relative_to(out)): (result_of(run)["accuracy"], result_of(run)["cost"], run_state(run)) for run in runs
    }


def test_a_cluster_that_loses_a_worker_and_a_node_leaves_what_local_processes_leave(cluster, run_state) -> None:
    process, on = cluster
    assert cli.main([*TABLE, "--device", "cpu", "--out", "local"]) == 0
    expected = left("local", run_state)
    assert len(expected) == 4

    table = CommandLine(*TABLE, "--on", on, "--out", "ray")
    wait_for(lambda: checkpoints("ray"), table)
    worker = next(pid for pid, command in below(process.pid) if command.startswith("ray::run_on_node"))
    os.kill(worker, signal.SIGKILL)
    seen = checkpoints("ray")
    wait_for(lambda: set(checkpoints("ray")) - set(seen), table)
    _, second = (pid for pid, command in below(process.pid) if "ray.scripts" in command and "start" in command)
    for pid, _ in [(second, ""), *below(second)]:
        os.kill(pid, signal.SIGKILL)
    code, said = table.rest()
    assert code == 0, said
    assert left("ray", run_state) == expected

    stopped = CommandLine(*TABLE, "--on", on, "--no-shared-folder", "--out", "carried")
    wait_for(lambda: checkpoints("carried"), stopped)
    stopped.send_signal(signal.SIGINT)
    code, said = stopped.rest()
    assert code == 130 and said.splitlines()[-1].startswith("dualnet: stopped; all runs are saved"), said
    assert len(left("carried", run_state)) < 4, "not stopped in the middle"
    assert cli.main([*TABLE, "--device", "cpu", "--out", "carried"]) == 0
    assert left("carried", run_state) == expected


def test_a_copy_of_a_run_is_carried_as_far_as_it_has_changed(tmp_path: Path) -> None:
    run = Path("seed-0")
    runs, copy = CarriedRuns(tmp_path), Copy(tmp_path / "copy")
    assert runs.read(run) == {}
    copy.unpack({})
    (copy.folder / "checkpoint").mkdir()
    for name in ("checkpoint/step-1", "experiment.yaml", "log.jsonl", "lock", "log.jsonl.7.tmp"):
        (copy.folder / name).write_text(name)
    changed, names = copy.changes()
    assert names == ["checkpoint/step-1", "experiment.yaml", "log.jsonl"], "a log is read after what counts its bytes"
    runs.write(run, changed, names)
    (copy.folder / "checkpoint/step-1").rename(copy.folder / "checkpoint/step-2")
    changed, names = copy.changes()
    assert list(changed) == ["checkpoint/step-2"]
    runs.write(run, changed, names)
    assert list(runs.read(run)) == ["checkpoint/step-2", "experiment.yaml", "log.jsonl"]
    with pytest.raises(ValueError, match="another process is running here"):
        CarriedRuns(tmp_path).read(run)


def test_a_cluster_that_is_not_there_is_one_line(error_line) -> None:
    line = error_line(*TABLE, "--on", "ray=127.0.0.1:9", "--out", "out")
    assert "no cluster at 127.0.0.1:9" in line and "dualnet cluster" in line
    assert "--gpus-per-job" in error_line(*TABLE, "--on", "ray", "--device", "cuda", "--out", "out")
    assert "ray start --address" in error_line(*TABLE, "--on", "ray=ray://host:10001", "--out", "out")
    assert "not local, ray or ray=HOST:PORT" in error_line(*TABLE, "--on", "slurm")
