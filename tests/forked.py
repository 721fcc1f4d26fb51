"""Processes that begin with PyTorch imported, by a server that they are forked from: each saves the 3 s of it.

For tests of what runs in a process, rather than of how it starts.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
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
