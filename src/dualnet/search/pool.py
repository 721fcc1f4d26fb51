"""Processes on this machine that run jobs, so many at a time. They end with this one, whatever ends it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import torch

from dualnet.machine import num_cores
from dualnet.runs.stop import Stop
from dualnet.search.point import Point

POLL = 0.2  # seconds between looks at whether a stop was asked for
GRACE = 5.0  # seconds for a process to end by itself
WORKER = "from dualnet.search import worker; worker.main()"


@dataclass(frozen=True)
class Job:
    """Seeds of a point that one process runs."""

    point: Point
    folders: dict[int, Path]

    def line(self, device: torch.device) -> bytes:
        folders = {str(seed): str(folder) for seed, folder in self.folders.items()}
        job = {"experiment": self.point.experiment.mapping(), "folders": folders, "device": device.type}
        return json.dumps(job).encode() + b"\n"


class Process:
    def __init__(self, log: IO[bytes], threads: int | None) -> None:
        # In a session of its own: Ctrl-C reaches the parent, which then asks its processes to stop.
        # Its stdin is its life line: the system closes it when the parent ends.
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-c", WORKER],
            env=environment(threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout
        self.job: Job | None = None

    def send(self, job: Job, device: torch.device) -> None:
        self.job = job
        with contextlib.suppress(BrokenPipeError):  # it has ended: `answer` says how
            self.stdin.write(job.line(device))
            self.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """To the job at hand, or how the process has ended instead."""
        line = self.stdout.readline()
        if line.endswith(b"\n"):
            return json.loads(line)
        code = self.popen.wait()
        if code == -signal.SIGTERM:
            return {"stopped": True}
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        more = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
        return {"trouble": f"its process {how}{more}"}

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        try:
            self.popen.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.stdout.close()


class Pool:
    """Processes are started when there is work, and kept for the next job."""

    def __init__(self, size: int, device: torch.device, threads: int | None, log: Path) -> None:
        self.size, self.device, self.threads = size, device, threads
        self.log = log.open("ab")
        self.idle: list[Process] = []
        self.busy = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.idle, *self.working()]:
            process.end()
        self.busy.close()
        self.log.close()

    def working(self) -> list[Process]:
        return [key.data for key in self.busy.get_map().values()]

    def run(self, jobs: Sequence[Job], stop: Stop) -> Iterator[tuple[Job, dict[str, Any]]]:
        """Each job with its answer, as they come. Once a stop is asked for, those at work save themselves."""
        waiting, told = deque(jobs), False
        while self.busy.get_map() or (waiting and not stop.asked):
            while waiting and not stop.asked and len(self.busy.get_map()) < self.size:
                self.start(waiting.popleft())
            if stop.asked and not told:
                for process in self.working():
                    process.popen.terminate()
                told = True
            for key, _ in self.busy.select(POLL):
                yield self.finish(key.data)

    def start(self, job: Job) -> None:
        process = self.idle.pop() if self.idle else Process(self.log, self.threads)
        self.busy.register(process.stdout, selectors.EVENT_READ, process)
        process.send(job, self.device)

    def finish(self, process: Process) -> tuple[Job, dict[str, Any]]:
        self.busy.unregister(process.stdout)
        job, answer = process.job, process.answer()
        assert job is not None
        if process.popen.poll() is None:
            self.idle.append(process)
        else:
            process.end()
        return job, answer


def environment(threads: int | None) -> dict[str, str]:
    """This one's, with the packages that this one finds."""
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return os.environ | {"PYTHONPATH": path} | ({"OMP_NUM_THREADS": str(threads)} if threads else {})


def num_threads(device: torch.device) -> int | None:
    """Of a process, on the CPU: OMP_NUM_THREADS, or one, since several processes use the cores better."""
    if device.type == "cuda":
        return None
    asked = os.environ.get("OMP_NUM_THREADS", "1")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else 1


def num_jobs(device: torch.device, asked: int | None) -> int:
    """How many processes at a time: as asked, or one for a GPU, or as many as the cores have room for."""
    if asked is not None:
        if asked < 1:
            raise ValueError(f"--jobs {asked}: give 1 or more")
        return asked
    threads = num_threads(device)
    return max(1, num_cores() // threads) if threads else 1
