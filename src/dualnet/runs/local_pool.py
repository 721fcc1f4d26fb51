"""LocalPool: jobs in processes of this machine, which end with this process, whatever ends it."""

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
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NoReturn, Self

import torch
from rich.console import Console

from dualnet.machine import num_cores
from dualnet.runs.jobs import Job, JobResult, run_job
from dualnet.runs.progress import RunDisplay
from dualnet.runs.stop import Stop

POLL = 0.2  # seconds between two checks whether a stop was requested
END_TIMEOUT = 5.0  # seconds for a process to end once its pool is left
SAVE_TIMEOUT = 60.0  # seconds for a job to save itself once its parent is gone
FORKED = multiprocessing.get_context("forkserver")
PRELOAD = ["dualnet.runs.fork_server", __name__, "torch._dynamo"]  # the last takes 2 s, as the first optimizer would


class LocalPool:
    """So many processes at a time. What they print goes to a log, or, with their progress, to stderr.

    Leaving the context ends the jobs that are still running; they can be resumed.
    """

    def __init__(self, size: int, threads: int | None = None, log: Path | None = None) -> None:
        self.size, self.threads, self.log = size, threads, log
        self.busy: dict[Connection, tuple[ForkServerProcess, Job]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self.busy:
            link.close()  # before the first is waited for, so that all of them save at the same time
        for process, _job in self.busy.values():
            process.join(END_TIMEOUT)
            process.kill()
            process.join()

    def run(self, jobs: Sequence[Job], stop: Stop) -> Iterator[tuple[Job, JobResult]]:
        waiting = deque(jobs)
        while self.busy or (waiting and not stop.asked):
            while waiting and not stop.asked and len(self.busy) < self.size:
                try:
                    self.start(waiting.popleft())
                except (EOFError, OSError):  # whoever asked for the stop may have ended the server too
                    if not stop.asked:
                        raise
            if stop.asked:  # again at each turn: a job that was just starting may have missed the first signal
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
            result = JobResult("stopped") if stop.asked else ended(process.exitcode or 0)
        if result.status == "stopped" and not stop.asked:
            result = JobResult("failed", "its process was told to stop")
        return job, result


@functools.cache
def start_server() -> None:
    """What the processes are forked from has imported everything and never touches CUDA, which survives no fork.

    So a process starts at once, has a peak of memory of its own, and crashes alone. The server finds the packages that
    this process finds, and imports nothing from the working directory. It begins with the signals of a stop blocked:
    those to the whole process group would end it while it imports.
    """
    FORKED.set_forkserver_preload(PRELOAD)
    path = os.pathsep.join(folder for folder in sys.path if folder)
    resource_tracker.ensure_running()  # first, since its start unblocks the signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with environment(PYTHONPATH=path, PYTHONSAFEPATH="1"):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Sets these variables meanwhile, and touches no other: threads may read them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def ended(code: int) -> JobResult:
    """The result of a job whose process has ended without giving one."""
    if code == -signal.SIGTERM:
        return JobResult("stopped")
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    more = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
    return JobResult("failed", f"its process {how}{more}")


def run_and_exit(
    job: Job, link: Connection, folder: Path, threads: int | None, log: Path | None, alone: bool
) -> NoReturn:
    """What the process of a job does. In a session of its own: Ctrl-C reaches the pool's process only.

    Without a log it shows its progress; with a bar, on a terminal, only if no other process shows one there.
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
        Stop.passed_on = True
        threading.Thread(target=end_with_parent, args=[link], daemon=True).start()
        warnings.filterwarnings("ignore", message=".*: left out; images of a class")  # the parent has said so
        console = Console(stderr=True, force_terminal=None if alone else False)
        result = run_job(job, RunDisplay(console if log is None else None))
        sys.stdout.flush()
        link.send(result)
        code = 0
    finally:
        os._exit(code)


def end_with_parent(link: Connection) -> None:
    """The connection is closed when the pool's process ends, also when it is killed: the job saves itself and ends."""
    poll = select.poll()
    poll.register(link, 0)  # hanging up is reported unasked
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVE_TIMEOUT)
    os._exit(1)


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
