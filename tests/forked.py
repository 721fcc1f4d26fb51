"""Processes that begin with PyTorch imported, by a server that they are forked from: each saves the 3 s of it.

For tests of what runs in a process, rather than of how it starts.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import TimeoutExpired
from typing import IO, Any
from unittest.mock import patch

import torch

import dualnet

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["dualnet.cli", "dualnet.runs.local_pool", "dualnet.learners", "torch._dynamo"])


SOURCE = Path(dualnet.__file__).resolve().parent.parent


def forked(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    process = FORKED.Process(target=target, args=arguments)
    with patch.dict(os.environ, PYTHONPATH=str(SOURCE)):  # the server starts with the first process
        process.start()
    return process


class Popen:
    """As that of subprocess, for `python -P -c CODE WORD...`, with all that LocalPool asks of it."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        stdin: int,
        stdout: IO[bytes] | int,
        stderr: IO[bytes] | None,
        start_new_session: bool,
    ) -> None:
        assert command[:3] == [sys.executable, "-P", "-c"] and start_new_session
        standard = [stdin, *(file if isinstance(file, int) else file.fileno() for file in (stdout, stderr or 2))]
        links = [Connection(os.dup(number)) for number in standard]
        self.process = forked(run_code, command[3:], dict(env), links)
        assert self.process.pid is not None
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    poll = returncode.fget

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.returncode is None:
            raise TimeoutExpired("a forked process", timeout or 0)
        return self.returncode


def run_code(words: list[str], env: dict[str, str], links: list[Connection]) -> None:
    os.setsid()
    for number, link in enumerate(links):
        os.dup2(link.fileno(), number)
        link.close()
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(1)
    sys.argv = ["-c", *words[1:]]
    exec(words[0], {"__name__": "__main__"})


class CommandLine:
    """The command line in a process of its own, on one thread; `stderr` is what it says."""

    def __init__(self, *words: object) -> None:
        reader, writer = FORKED.Pipe(duplex=False)
        self.process = forked(run_words, [*map(str, words)], writer)
        writer.close()
        self.stderr = os.fdopen(os.dup(reader.fileno()))

    def send_signal(self, number: int) -> None:
        if self.process.is_alive():
            assert self.process.pid is not None
            os.kill(self.process.pid, number)


def run_words(words: list[str], stderr: Connection) -> None:
    from dualnet import cli

    sys.stderr = os.fdopen(os.dup(stderr.fileno()), "w", buffering=1)
    torch.set_num_threads(1)
    sys.exit(cli.main(words))
