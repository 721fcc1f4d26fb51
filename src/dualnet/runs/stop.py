"""Ctrl-C and SIGTERM: the current step is finished and a checkpoint is written, so that the run can be resumed."""

import signal
import threading
from types import FrameType
from typing import Any, ClassVar, Self


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
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
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
