"""Starts processes of the service. Imports no PyTorch: the learner process imports it while this one does."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from dualnet.experiments.stop import blocked_signals

SPAWN = multiprocessing.get_context("spawn")
Learner = tuple[BaseProcess, Connection]


def spawn(name: str, target: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = SPAWN.Process(target=target, args=arguments, name=name, daemon=True)
    with blocked_signals():
        process.start()
    return process


def start() -> Learner:
    """A process that waits for its options, and the link to it."""
    link, theirs = SPAWN.Pipe()
    process = spawn("dualnet-learner", main, theirs)
    theirs.close()
    return process, link


@contextmanager
def started() -> Iterator[Learner]:
    """It ends with the context, if it has not been sent options."""
    process, link = start()
    with closing(link):
        yield process, link


def main(link: Connection) -> None:
    from dualnet.serve import worker

    try:
        options = link.recv()
    except EOFError:
        return
    worker.main(options, link)
