"""Ctrl-C and SIGTERM: the current step is finished and a checkpoint is written, so that the run can be resumed."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, ClassVar, Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """A process that is started within the context has SIGINT and SIGTERM blocked, except on Windows.

    A signal to the whole process group would otherwise end it while it imports.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker  # not needed by commands that start no process

    resource_tracker.ensure_running()  # first, since its start unblocks the signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class StopRequested(Exception):  # noqa: N818 (not an error)
    """The run was asked to stop and has saved its state."""


class Stop:
    """Within the context the first signal sets `requested`; a second one ends the process at once.

    In a process whose parent forwards SIGTERM (`is_forwarded`) further ones are ignored: a scheduler sends the signal
    to all processes, so a child receives it twice.
    """

    is_forwarded: ClassVar[bool] = False  # for the whole process

    def __init__(self) -> None:
        self.requested = False
        self.previous: dict[int, Any] = {}  # handlers by signal

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # signals are handled there only
            for number in STOP_SIGNALS:
                self.previous[number] = signal.signal(number, self.request)
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self.restore()
        if self.is_forwarded:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
