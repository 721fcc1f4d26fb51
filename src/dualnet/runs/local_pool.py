"""LocalPool: jobs in processes of this machine, which end with this process, whatever ends it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, NoReturn, Self

from rich.console import Console

from dualnet.machine import num_cores
from dualnet.runs.jobs import Job, JobResult, run_job
from dualnet.runs.progress import RunDisplay
from dualnet.runs.stop import Stop

POLL = 0.2  # seconds between two checks whether a stop was requested
END_TIMEOUT = 5.0  # seconds for a process to end once its pool is left
SAVE_TIMEOUT = 60.0  # seconds for a job to save itself once its parent is gone
COMMAND = "from dualnet.runs import local_pool; local_pool.serve()"


class LocalPool:
    """So many processes at a time. What they print goes to a log, or, with their progress, to stderr.

    Leaving the context ends the jobs that are still running; they can be resumed.
    """

    def __init__(self, size: int, threads: int | None = None, log: Path | None = None) -> None:
        self.size, self.threads = size, threads
        self.log = log.open("ab") if log else None
        self.idle: list[Worker] = []
        self.busy: dict[Worker, Job] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        workers = [*self.idle, *self.busy]
        for worker in workers:
            worker.link.close()  # before the first is waited for, so that all of them save at the same time
        for worker in workers:
            worker.end()
        if self.log:
            self.log.close()

    def run(self, jobs: Sequence[Job], stop: Stop) -> Iterator[tuple[Job, JobResult]]:
        waiting = deque(jobs)
        while self.busy or (waiting and not stop.asked):
            while waiting and not stop.asked and len(self.busy) < self.size:
                self.start(waiting.popleft(), more=bool(waiting))
            if stop.asked:  # again at each turn: a job that was just starting may have missed the first signal
                for worker in self.busy:
                    worker.send_signal(signal.SIGTERM)
            ready = wait([worker.link for worker in self.busy], POLL)
            for worker in [worker for worker in self.busy if worker.link in ready]:
                yield self.busy[worker], self.finish(worker, stop)

    def start(self, job: Job, more: bool = False) -> None:
        worker = self.idle.pop() if self.idle else self.worker()
        self.busy[worker] = job
        with contextlib.suppress(BrokenPipeError):  # it has ended: `result` says how
            worker.link.send(job)
        if more and not forks(job):  # its process ends with it: that of the next job imports while this one runs
            self.idle.append(self.worker())

    def worker(self) -> Worker:
        show = "nothing" if self.log else "lines" if self.size > 1 else "live"
        return Worker(self.log, self.threads, show)

    def finish(self, worker: Worker, stop: Stop) -> JobResult:
        result, job = worker.result(), self.busy.pop(worker)
        if forks(job) and worker.popen.poll() is None:
            self.idle.append(worker)
        else:
            worker.end()
        if result.status == "stopped" and not stop.asked:
            return JobResult("failed", "its process was told to stop")
        return result


class Worker:
    """A process that takes one job at a time, see `serve`."""

    def __init__(self, log: IO[bytes] | None, threads: int | None, show: str) -> None:
        self.link, theirs = Pipe()
        path = os.pathsep.join(folder for folder in sys.path if folder)  # it finds the packages that this process finds
        # In a session of its own: Ctrl-C reaches the parent only, which then stops its processes.
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-c", COMMAND, show],
            env=os.environ | {"PYTHONPATH": path} | ({"OMP_NUM_THREADS": str(threads)} if threads else {}),
            stdin=theirs.fileno(),
            stdout=log or 2,
            stderr=log,
            start_new_session=True,
        )
        theirs.close()

    def result(self) -> JobResult:
        try:
            return self.link.recv()
        except (EOFError, ConnectionResetError):
            return ended(self.popen.wait())

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)

    def end(self) -> None:
        self.link.close()
        try:
            self.popen.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGKILL)
            self.popen.wait()


def ended(code: int) -> JobResult:
    """The result of a job whose process has ended without giving one."""
    if code == -signal.SIGTERM:
        return JobResult("stopped")
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    more = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
    return JobResult("failed", f"its process {how}{more}")


def serve() -> None:
    """What a Worker's process does: its input is a connection that jobs come by; each runs in a fork.

    A fork starts at once, since all is imported, has a peak of memory of its own, and crashes alone. CUDA does not
    survive a fork once anything has initialised it: a job for it runs here, and the process ends with it.
    """
    import torch._dynamo  # noqa: F401  (2 s, which the first optimizer of each fork would take)

    link = Connection(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is for the fork
    with contextlib.suppress(EOFError, OSError):  # the pool's process has ended
        while True:
            job: Job = link.recv()
            process = os.fork() if forks(job) else 0
            if process == 0:
                run_and_exit(job, link)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            if code:
                link.send(ended(code))


def forks(job: Job) -> bool:
    return job.device != "cuda"


def run_and_exit(job: Job, link: Connection) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        Stop.passed_on = True
        threading.Thread(target=end_with_parent, daemon=True).start()
        warnings.filterwarnings("ignore", message=".*: left out; images of a class")  # the parent has said so
        result = run_job(job, display_named(sys.argv[-1]))
        sys.stdout.flush()
        link.send(result)
        code = 0
    finally:
        os._exit(code)


def end_with_parent() -> None:
    """The connection is closed when the pool's process ends, also when it is killed: the job saves itself and ends."""
    poll = select.poll()
    poll.register(0, 0)  # hanging up is reported unasked
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVE_TIMEOUT)
    os._exit(1)


def display_named(show: str) -> RunDisplay:
    """live: with a bar on a terminal; lines: without one, for several processes on a terminal; or quiet."""
    if show not in ("live", "lines"):
        return RunDisplay()
    return RunDisplay(Console(stderr=True, force_terminal=None if show == "live" else False))


def num_threads(device: str) -> int | None:
    """Of a process, on the CPU: OMP_NUM_THREADS, or one, since several processes use the cores better."""
    if device == "cuda":
        return None
    asked = os.environ.get("OMP_NUM_THREADS", "1")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else 1


def num_jobs(device: str, asked: int | None) -> int:
    """How many processes at a time: as asked, or one for a GPU, or as many as the cores have room for."""
    threads = num_threads(device)
    return asked or (max(1, num_cores() // threads) if threads else 1)
