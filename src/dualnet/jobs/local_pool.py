"""LocalPool runs jobs in processes of this machine. They end when this process ends, even if it is killed."""

import contextlib
import functools
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NoReturn

import torch
from rich.console import Console

from dualnet.data.class_folders import IgnoredFilesWarning
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.stop import Stop, blocked_signals
from dualnet.jobs.job import Executor, Job, JobResult, run_job
from dualnet.machine import num_cores

POLL = 0.2  # seconds between two checks whether a stop was requested
END_TIMEOUT = 5.0  # seconds for a process to end once the context of its pool is left
SAVE_TIMEOUT = 60.0  # seconds for a job to save its state once its parent is gone
FORKED = multiprocessing.get_context("forkserver")
PRELOAD = ["dualnet.jobs.fork_server", __name__]


class LocalPool(Executor):
    """Up to `size` processes at a time. Their output goes to a log file, or to stderr together with their progress."""

    def __init__(self, size: int, threads: int | None, log: Path | None = None) -> None:
        self.size, self.threads, self.log = size, threads, log
        self.waiting: deque[Job] = deque()
        self.busy: dict[Connection, tuple[ForkServerProcess, Job]] = {}

    def __exit__(self, *_: object) -> None:
        for link in self.busy:
            link.close()  # all of them before the first join, so that the jobs save at the same time
        for process, _job in self.busy.values():
            process.join(END_TIMEOUT)
            process.kill()
            process.join()

    def submit(self, job: Job) -> None:
        self.waiting.append(job)

    def collect(self, stop: Stop) -> Iterator[tuple[Job, JobResult]]:
        while self.busy or (self.waiting and not stop.requested):
            while self.waiting and not stop.requested and len(self.busy) < self.size:
                try:
                    self.start(self.waiting.popleft())
                except (EOFError, OSError):  # the signal may have ended the fork server too
                    if not stop.requested:
                        raise
            if stop.requested:  # repeatedly: a job that was just starting may have missed the first signal
                for process, _ in self.busy.values():
                    process.terminate()
            for link in wait(list(self.busy), POLL):
                assert isinstance(link, Connection)
                yield self.finish(link, stop)

    def start(self, job: Job) -> None:
        start_server()
        link, theirs = FORKED.Pipe()
        arguments = (job, theirs, Path.cwd(), self.threads, self.log, self.size == 1)
        process = FORKED.Process(target=run_and_exit, args=arguments)
        process.start()
        theirs.close()
        self.busy[link] = process, job

    def finish(self, link: Connection, stop: Stop) -> tuple[Job, JobResult]:
        process, job = self.busy.pop(link)
        result = None
        with contextlib.closing(link), contextlib.suppress(EOFError, ConnectionResetError):
            result = link.recv()
        process.join()
        if result is None:
            result = JobResult("stopped") if stop.requested else result_of_exit(process.exitcode or 0)
        if result.status == "stopped" and not stop.requested:
            result = JobResult("failed", "its process was told to stop")
        return job, result


@functools.cache
def start_server() -> None:
    """Start the fork server: it imports everything once and never uses CUDA, which does not survive a fork.

    A job then starts quickly, has its own peak of memory, and can crash alone. The server has this process's import
    path without the working directory.
    """
    FORKED.set_forkserver_preload(PRELOAD)
    path = os.pathsep.join(folder for folder in sys.path if folder)
    with blocked_signals(), environment(PYTHONPATH=path, PYTHONSAFEPATH="1"):
        forkserver.ensure_running()


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Sets these environment variables within the context; others are left alone, since threads may read them."""
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def result_of_exit(code: int) -> JobResult:
    """The result of a job whose process has ended without sending one."""
    if code == -signal.SIGTERM:
        return JobResult("stopped")
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    more = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
    return JobResult("failed", f"its process {how}{more}")


def run_and_exit(
    job: Job, link: Connection, folder: Path, threads: int | None, log: Path | None, alone: bool
) -> NoReturn:
    """Main function of a job's process, in its own session so that Ctrl-C reaches only the pool's process.

    Without a log it shows its progress, on a terminal as a bar if it is `alone`.
    """
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        output = 2 if log is None else os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for number in (1, 2):
            os.dup2(output, number)
        if threads:
            torch.set_num_threads(threads)
        Stop.is_forwarded = True
        threading.Thread(target=end_with_parent, args=[link], daemon=True).start()
        warnings.simplefilter("ignore", IgnoredFilesWarning)  # the parent has already warned
        console = Console(stderr=True, force_terminal=None if alone else False)
        result = run_job(job, RunDisplay(console if log is None else None))
        sys.stdout.flush()
        link.send(result)
        code = 0
    finally:
        os._exit(code)


def end_with_parent(link: Connection) -> None:
    """Stop the job when the connection is closed, as it is when the pool's process ends or is killed."""
    poll = select.poll()
    poll.register(link, 0)  # a closed connection is always reported
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVE_TIMEOUT)
    os._exit(1)


def processes(device: str, asked: int | None) -> tuple[int, int | None]:
    """The number of processes at a time, one for a GPU, and the threads of each, None for as many as PyTorch chooses.

    On the CPU several with one thread, or OMP_NUM_THREADS, use the cores better than one with many.
    """
    if device == "cuda":
        return asked or 1, None
    given = os.environ.get("OMP_NUM_THREADS", "1")
    threads = int(given) if given.isdecimal() and int(given) > 0 else 1
    size = asked or max(1, num_cores() // threads)
    return size, threads if size > 1 else None
