"""`dualnet cluster`: a Ray cluster on this machine, which ends with the command."""

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from dualnet.cli.terminal import print_line
from dualnet.experiments.stop import Stop
from dualnet.jobs.ray_cluster import TOKEN
from dualnet.machine import num_cores

START_TIMEOUT = 60.0  # seconds
END_TIMEOUT = 30.0
STARTED = "Ray runtime started"
LOOPBACK = "127.0.0.1"
# Ray's command, with this Python. By itself it replaces a loopback address by that of another interface.
KEEP_LOOPBACK = "from ray._private import services; services.resolve_ip_for_localhost = str"
RAY = (sys.executable, "-c", f"{KEEP_LOOPBACK}; from ray.scripts.scripts import main; main()", "start")
RAY += ("--block", "--disable-usage-stats", "--node-ip-address", LOOPBACK)


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ValueError("dualnet cluster needs Ray: pip install 'dualnet[ray]'") from error
    make_token(Path.home() / TOKEN)
    cpus = arguments.cpus or max(1, num_cores() // arguments.nodes)
    with Stop() as stop, ExitStack() as nodes:
        folder = nodes.enter_context(tempfile.TemporaryDirectory(prefix="dualnet-ray-"))
        for number in range(arguments.nodes):
            head = ("--head", "--port", str(arguments.port), "--include-dashboard", "false", "--no-monitor")
            place = (
                (*head, "--temp-dir", folder)
                if number == 0
                else ("--address", f"{LOOPBACK}:{arguments.port}", "--include-log-monitor", "false")
            )
            start([*RAY, *place, "--num-cpus", str(cpus)], Path(folder, f"node-{number}.log"), nodes, stop)
        if not stop.requested:
            print_line(f"{arguments.nodes} nodes of {cpus} CPUs: run jobs with --on ray; Ctrl-C ends the cluster")
            sys.stdout.flush()
        while not stop.requested:
            time.sleep(0.1)
    return 0


def make_token(file: Path) -> None:
    """The token without which nobody can use the cluster, where Ray looks for it."""
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as stream:
            stream.write(secrets.token_hex(32))


def start(words: list[str], log: Path, nodes: ExitStack, stop: Stop) -> None:
    """Start a node, which ends when `nodes` is closed. Raises ValueError with its last words if it does not start."""
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    with log.open("w") as output:
        node = subprocess.Popen(words, stdout=output, stderr=output, env=environment, start_new_session=True)
    nodes.callback(end, node)
    deadline = time.monotonic() + START_TIMEOUT
    while STARTED not in log.read_text() and not stop.requested:
        if node.poll() is not None or time.monotonic() > deadline:
            last = [line for line in log.read_text().splitlines() if line.strip()][-1:]
            raise ValueError(f"the node has not started: {''.join(last) or 'it says nothing'}")
        time.sleep(0.1)


def end(node: subprocess.Popen) -> None:
    node.terminate()
    try:
        node.wait(END_TIMEOUT)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()
