"""Processes forked from a server that has already imported PyTorch: each starts 3 s faster.

For tests of what runs in a process, rather than of how it starts.
"""

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from commands import SOURCE, environment

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["dualnet.cli", "dualnet.jobs.local_pool", "dualnet.learners", "dualnet.serve.server"])


def forked(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    process = FORKED.Process(target=target, args=arguments)
    with patch.dict(os.environ, PYTHONPATH=str(SOURCE)):  # the server starts with the first process
        process.start()
    return process


class CommandLine:
    """The command line in its own process and process group, with one thread; `output` is its stderr.

    With `both` it includes stdout. `file_bytes` limits the size of its files, which stands for a full disk. Variables
    are added to its environment.
    """

    def __init__(
        self, *words: object, both: bool = False, file_bytes: int = resource.RLIM_INFINITY, **variables: str
    ) -> None:
        reader, writer = FORKED.Pipe(duplex=False)
        numbers = (1, 2) if both else (2,)
        self.process = forked(run_words, [*map(str, words)], writer, numbers, file_bytes, environment(**variables))
        writer.close()
        self.output = os.fdopen(os.dup(reader.fileno()))
        assert self.process.pid is not None
        self.pid = self.process.pid

    def send_signal(self, number: int) -> None:
        if self.process.is_alive():
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float = 600) -> int:
        """The exit code. Output that does not fit into a pipe must be read before."""
        self.process.join(timeout)
        code = self.process.exitcode
        assert code is not None, f"it is still running after {timeout:g} s"
        return code

    def rest(self) -> tuple[int, str]:
        """The exit code and the remaining output."""
        with self.output:
            said = self.output.read()
        return self.wait(), said


def run_words(
    words: list[str], output: Connection, numbers: tuple[int, ...], file_bytes: int, environment: dict[str, str]
) -> None:
    """Run a command as in a terminal of its own; the fork server may have been started by another test."""
    from dualnet import cli
    from dualnet.serve import learner_process

    signal.signal(signal.SIGINT, signal.default_int_handler)
    take_place(0, (file_bytes, file_bytes), environment, output, numbers)
    learner_process.SPAWN = SimpleNamespace(Pipe=FORKED.Pipe, Process=partial(forked_beside, output, numbers))
    sys.exit(cli.main(words))


def forked_beside(
    output: Connection, numbers: tuple[int, ...], target: Callable[..., None], args: tuple[Any, ...], **options: Any
) -> ForkServerProcess:
    """In place of a spawned process: a fork of the same server, with the group, limit and output of this process."""
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]  # it would start another
    place = os.getpgrp(), resource.getrlimit(resource.RLIMIT_FSIZE), dict(os.environ), output, numbers
    return FORKED.Process(target=run_beside, args=(place, target, args), **options)


def run_beside(place: tuple[Any, ...], target: Callable[..., None], args: tuple[Any, ...]) -> None:
    take_place(*place)
    target(*args)


def take_place(
    group: int, limit: tuple[int, int], environment: dict[str, str], output: Connection, numbers: tuple[int, ...]
) -> None:
    os.setpgid(0, group)
    os.environ.clear()
    os.environ.update(environment)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    for number in numbers:  # also for the processes that it starts
        os.dup2(output.fileno(), number)
        setattr(sys, ("stdout", "stderr")[number - 1], os.fdopen(number, "w", buffering=1, closefd=False))
    torch.set_num_threads(1)
