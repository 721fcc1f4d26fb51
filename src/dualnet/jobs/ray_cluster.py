"""RayCluster runs jobs on the nodes of a Ray cluster that runs already. Needs the extra dualnet[ray].

A job whose worker or node is lost runs again elsewhere, from its last checkpoint.
"""

import logging
import os
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from filelock import FileLock

from dualnet import __version__
from dualnet.experiments.model_folder import LOCK_FILE
from dualnet.experiments.stop import Stop
from dualnet.jobs.carried_runs import CarriedRuns, carry
from dualnet.jobs.job import Executor, Job, JobResult
from dualnet.jobs.local_pool import SAVE_TIMEOUT, LocalPool
from dualnet.text import join_lines

CONNECT_TIMEOUT = 10.0  # seconds
POLL = 0.2  # seconds between two checks whether a stop was requested
LOST = 3  # times that a job may lose its worker or node
LOCK_TIMEOUT = SAVE_TIMEOUT + 30  # seconds that a job waits for the process of a lost worker to end
TOKEN = Path(".ray", "auth_token")  # in the home folder: where Ray looks for it


class RayCluster(Executor):
    """Jobs of `threads` CPUs and a share of a GPU each, as many at a time as the cluster has room for.

    They write to `out`, which all nodes see under the same path. With `carried` none of them needs to: each works in a
    folder of its node, and this machine's folder is kept up to date.
    """

    def __init__(self, address: str, out: Path, cpus: int, gpus: float, carried: bool, log: Path | None) -> None:
        self.address, self.out, self.threads, self.gpus, self.log = address, out, cpus, gpus, log
        self.carried = carried
        self.marker = out.absolute() / f".seen-by-{uuid.uuid4().hex}"  # a node that sees `out` sees this file
        self.running: dict[Any, Job] = {}  # by the reference to its result

    def __enter__(self) -> Self:
        self.ray = connect(self.address, show_output=self.log is None)
        self.out.mkdir(parents=True, exist_ok=True)
        self.marker.touch()
        try:
            self.check_nodes()
        except BaseException:
            self.__exit__()
            raise
        here = self.ray.get_runtime_context().get_node_id()
        runs = self.ray.remote(CarriedRuns).options(num_cpus=0, scheduling_strategy=self.on_node(here))
        self.runs = runs.remote(Path.cwd()) if self.carried else None
        return self

    def __exit__(self, *_: object) -> None:
        for reference in self.running:
            self.ray.cancel(reference, force=True)
        self.ray.shutdown()
        self.marker.unlink(missing_ok=True)
        with suppress(OSError):
            self.out.rmdir()  # if it is empty

    def on_node(self, identifier: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(identifier, soft=False)

    def check_nodes(self) -> None:
        """Raises ValueError if no node has room for a job, one does not see the folder, or has another dualnet."""
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        needs = {"CPU": self.threads or 1, "GPU": self.gpus}
        if not any(all(node["Resources"].get(kind, 0) >= count for kind, count in needs.items()) for node in nodes):
            a_job = f"--cpus-per-job {needs['CPU']}" + (f" and --gpus-per-job {self.gpus:g}" if self.gpus else "")
            raise ValueError(f"no node has room for a job with {a_job}; `dualnet list nodes` shows what there is")
        task = self.ray.remote(num_cpus=0, max_retries=0)(describe_node)
        asked = [task.options(scheduling_strategy=self.on_node(node["NodeID"])).remote(self.marker) for node in nodes]
        for node, reference in zip(nodes, asked, strict=True):
            name = f"node {node['NodeManagerAddress']} ({node['NodeManagerHostname']})"
            try:
                version, sees = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                raise ValueError(f"{name} cannot run dualnet: {join_lines(error)}") from error
            if version != __version__:
                raise ValueError(f"{name} has dualnet {version}, this machine {__version__}; install the same version")
            if not (sees or self.carried):
                raise ValueError(f"{name} does not see {self.marker.parent}; share it, or use --no-shared-folder")

    def submit(self, job: Job) -> None:
        task = self.ray.remote(max_retries=LOST)(run_on_node)
        options = {"num_cpus": self.threads or 1, "num_gpus": self.gpus, "scheduling_strategy": "SPREAD"}
        marker = None if self.carried else self.marker
        arguments = (job, self.runs, marker, Path.cwd(), sys.path, self.threads, self.log is not None)
        self.running[task.options(**options).remote(*arguments)] = job

    def collect(self, stop: Stop) -> Iterator[tuple[Job, JobResult]]:
        cancelled = False
        while self.running:
            if stop.requested and not cancelled:
                for reference in self.running:  # as by Ctrl-C: those that run save their state
                    self.ray.cancel(reference, force=False, recursive=False)
                cancelled = True
            ended, _ = self.ray.wait(list(self.running), timeout=POLL)
            for reference in ended:
                job = self.running.pop(reference)
                yield job, self.result(reference, stop)

    def result(self, reference: Any, stop: Stop) -> JobResult:
        exceptions = self.ray.exceptions
        try:
            result, output = self.ray.get(reference)
        except exceptions.TaskCancelledError:
            return JobResult("stopped")
        except exceptions.RayError as error:
            return JobResult("stopped") if stop.requested else JobResult("failed", f"lost: {join_lines(error)}")
        if self.log and output:
            with self.log.open("a") as log:
                log.write(output)
        if result.status == "stopped" and not stop.requested:
            return JobResult("failed", "its process was told to stop")
        return result


def address_of(on: str) -> str:
    """The address in `ray=ADDRESS`; of `ray` alone, that of the cluster to which this machine belongs."""
    return on.partition("=")[2] or "auto"


def connect(address: str, show_output: bool = True) -> Any:
    """Join the cluster; this machine must be one of its nodes. Returns the module ray."""
    if address.startswith("ray://"):
        raise ValueError(f"--on ray={address}: run `ray start --address=HOST:PORT` on this machine, then --on ray")
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH") or (Path.home() / TOKEN).exists():
        variables["RAY_AUTH_MODE"] = "token"
    if not sys.stderr.isatty():
        variables["RAY_COLOR_PREFIX"] = "0"
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.exceptions
        from ray._private import services
    except ImportError as error:
        raise ValueError("--on ray needs Ray: pip install 'dualnet[ray]'") from error
    try:
        check_address(address)
        services.resolve_ip_for_localhost = str  # `dualnet cluster` is on a loopback address: it must not be replaced
        ray.init(address=address, log_to_driver=show_output, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        remedy = "`dualnet cluster` starts one on this machine, `ray start --address=HOST:PORT` joins one"
        remedy += "; its token has to be in ~/.ray/auth_token"
        raise ValueError(f"--on ray: no cluster at {address} ({join_lines(error, 200)}); {remedy}") from error
    return ray


def check_address(address: str) -> None:
    """Raises OSError or ValueError if nobody listens: Ray itself tries for nine minutes."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()


def describe_node(marker: Path) -> tuple[str, bool]:
    """The version of dualnet on a node, and whether it sees a file. Runs there."""
    return __version__, marker.exists()


def run_on_node(
    job: Job, runs: Any, marker: Path | None, folder: Path, path: list[str], threads: int | None, keeps_output: bool
) -> tuple[JobResult, str]:
    """Run a job on a node, in place if there is a `marker`, which the node must see. Returns also its output.

    It has a process of its own, which saves its state and ends if the worker is lost.
    """
    sys.path += [entry for entry in path if entry not in sys.path]
    if marker and not marker.exists():
        return JobResult("failed", f"node {socket.gethostname()} does not see {marker.parent}"), ""
    with suppress(OSError):
        os.chdir(folder)
    with tempfile.TemporaryDirectory(prefix="dualnet-") as temporary:
        log = Path(temporary, "log") if keeps_output else None
        with Stop() as stop, LocalPool(1, threads, log) as pool:  # ray.cancel has the effect of Ctrl-C

            def run(job: Job) -> JobResult:
                pool.submit(job)
                return next((result for _, result in pool.collect(stop)), JobResult("stopped"))

            if marker:
                for run_folder in job.runs:
                    wait_for_lock(run_folder)
                result = run(job)
            else:
                result = carry(job, runs, Path(temporary), run)
        return result, log.read_text() if log and log.exists() else ""


def wait_for_lock(run: Path) -> None:
    """Let the process of a lost worker end, which may still hold the lock."""
    file = run / LOCK_FILE
    if file.exists():
        with suppress(TimeoutError), FileLock(file, timeout=LOCK_TIMEOUT):
            pass
