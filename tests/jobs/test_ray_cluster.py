"""A real Ray cluster of two nodes on this machine: what it leaves equals what local processes leave, bit by bit."""

import json
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import environment, file_times
from forked import CommandLine

from dualnet import cli
from dualnet.cli.cluster import RAY, STARTED
from dualnet.experiments import checkpoint
from dualnet.jobs.carried_runs import CarriedRuns, Copy

pytest.importorskip("ray", reason="needs dualnet[ray]")
TABLE = ["reproduce", "small-table-1", "--rows", "task-aware/er,task-aware/derpp", "--seeds", "0,1"]
TABLE += ["--benchmark.train_per_class", "40", "--benchmark.test_per_class", "3", "--learner.encoder.width", "2"]
TABLE += ["--learner.updates", "1", "--checkpoint_every", "5"]
ALONE = ["unshare", "--map-root-user", "--mount", "--uts"]  # with folders and a name of its own


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(tmp_path, "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))  # of the token


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, run_state: Callable[[Path], Any]) -> dict[str, Any]:
    """What local processes leave."""
    out = tmp_path_factory.mktemp("local")
    assert cli.main([*TABLE, "--device", "cpu", "--out", str(out)]) == 0
    expected = left(out, run_state)
    assert len(expected) == 5
    return expected


@contextmanager
def cluster(nodes: int) -> Iterator[tuple[CommandLine, str]]:
    """`dualnet cluster` with nodes of one CPU, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = CommandLine("cluster", "--nodes", nodes, "--cpus", 1, "--port", port, both=True)
    line = process.output.readline()
    assert line.startswith(f"{nodes} nodes of 1 CPUs"), line
    try:
        yield process, f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        code, said = process.rest()
    assert code == 0, said


@contextmanager
def node_without(folder: Path, address: str, log: Path) -> Iterator[subprocess.Popen]:
    """A node named `second`, as of another machine: it finds a folder empty."""
    ray = shlex.join([*RAY, "--address", address, "--num-cpus", "1"])
    words = f"hostname second && mount -t tmpfs none {shlex.quote(str(folder))} && exec {ray}"
    with log.open("w") as output:
        variables = environment(RAY_AUTH_MODE="token")
        node = subprocess.Popen([*ALONE, "sh", "-c", words], env=variables, stdout=output, stderr=output)
    try:
        wait_for(lambda: STARTED in log.read_text(), node)
        yield node
    finally:
        kill(node.pid)
        node.wait()


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


def kill(process: int) -> None:
    """Kill a process and all below it."""
    for pid in (process, *dict(below(process))):
        os.kill(pid, signal.SIGKILL)


def kill_worker(node: int) -> None:
    """Kill a process of a node that runs a job."""
    os.kill(next(pid for pid, name in below(node) if name.startswith("ray::run_on_node")), signal.SIGKILL)


def wait_for(condition: Callable[[], Any], process: CommandLine | subprocess.Popen) -> Any:
    late = time.monotonic() + 300
    while not (value := condition()):
        assert process.poll() is None and time.monotonic() < late, "it has ended, or hangs"
        time.sleep(0.02)
    return value


def checkpoints(out: str) -> set[Path]:
    return set(Path(out).rglob("step-*.safetensors"))


def saved_logs(out: str) -> dict[Path, bytes]:
    """The logs up to the newest checkpoint, with the times of all steps."""
    found = {}
    for folder in Path(out).rglob("checkpoint"):
        log, tree = folder.parent / "log.jsonl", checkpoint.load(folder, max(checkpoint.steps(folder))).tree
        found[log] = log.read_bytes()[: tree["log_bytes"]]
    return found


def left(out: Path | str, run_state: Callable[[Path], Any]) -> dict[str, Any]:
    """The finished runs, and the ledger without times and memory, which are measured."""
    runs = {file.parent for file in Path(out).rglob("result.json")}
    state = {str(run.relative_to(out)): run_state(run) for run in runs}
    for file in Path(out).rglob("ledger.json"):
        state["ledger"] = json.loads(file.read_text(), object_pairs_hook=unmeasured)
    return state


def unmeasured(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if key not in ("seconds", "memory") or isinstance(value, str)}


def listens_on(process: int) -> set[str]:
    """The addresses on which a process and all below it listen."""
    import psutil  # Ray's own

    found, connections = {process, *dict(below(process))}, psutil.net_connections("inet")
    return {one.laddr.ip for one in connections if one.status == "LISTEN" and one.pid in found}


def test_a_cluster_that_loses_a_worker_and_a_node_leaves_what_local_processes_leave(expected, run_state) -> None:
    with cluster(2) as (process, address):
        table = CommandLine(*TABLE, "--on", f"ray={address}", "--out", "ray")
        wait_for(lambda: checkpoints("ray"), table)
        assert {ip.removeprefix("::ffff:") for ip in listens_on(process.pid)} == {"127.0.0.1"}
        kill_worker(process.pid)
        seen = checkpoints("ray")
        wait_for(lambda: checkpoints("ray") - seen, table)
        _, second = (pid for pid, command in below(process.pid) if "ray.scripts" in command and "start" in command)
        kill(second)
        code, said = table.rest()
        assert code == 0, said
        assert left("ray", run_state) == expected


@pytest.mark.skipif(subprocess.run([*ALONE, "true"], check=False).returncode != 0, reason="the system forbids it")
def test_nodes_with_folders_of_their_own(expected, run_state, tmp_path) -> None:
    """A worker and a node are lost, Ctrl-C, and local processes finish what is missing."""
    with cluster(1) as (process, address), node_without(tmp_path / "work", address, tmp_path / "log") as second:
        words = [*TABLE, "--on", f"ray={address}", "--out", "runs"]
        code, said = CommandLine(*words, "--gpus-per-job", "0.25").rest()
        assert code == 2 and "no node has room for a job with --cpus-per-job 1 and --gpus-per-job 0.25" in said, said
        code, said = CommandLine(*words).rest()
        assert code == 2 and said.count("\n") == 1, said
        assert f"(second) does not see {tmp_path}/work/runs" in said and "--no-shared-folder" in said

        table = CommandLine(*words, "--no-shared-folder")
        wait_for(lambda: checkpoints("runs"), table)
        begun = {file.parent for file in Path("runs").rglob("lock")}
        assert len([run for run in begun if not (run / "result.json").exists()]) <= 2, "more jobs than CPUs"
        kill_worker(process.pid)
        kill(second.pid)
        seen = checkpoints("runs")
        wait_for(lambda: checkpoints("runs") - seen, table)
        table.send_signal(signal.SIGINT)
        code, said = table.rest()
        assert code == 130 and said.splitlines()[-1].startswith("dualnet: stopped; all runs are saved"), said
        finished, logs = {file.parent for file in Path("runs").rglob("result.json")}, saved_logs("runs")
        assert len(finished) < 4 and logs, "not stopped in the middle"
        before = {folder: file_times(folder) for folder in finished}
        assert cli.main([*TABLE, "--device", "cpu", "--out", "runs"]) == 0
        assert {folder: file_times(folder) for folder in finished} == before
        assert all(file.read_bytes().startswith(log) for file, log in logs.items()), "steps were run twice"
        assert left("runs", run_state) == expected


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
