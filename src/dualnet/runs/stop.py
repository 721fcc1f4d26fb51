"""Ctrl-C and SIGTERM: the step in progress is finished, a checkpoint is made, and the run ends so that it can go on."""

import signal
import threading
from types import FrameType
from typing import Any, ClassVar, Self


class StopAsked(Exception):  # noqa: N818 (not an error)
    """The run was asked to stop and has saved itself."""


class Stop:
    """Within the context the first signal sets `asked`; a second one ends the process at once.

    Not so with `passed_on`, for a process whose parent passes SIGTERM on: a scheduler sends it to all processes, and
    each one below hears of the same request twice.
    """

    passed_on: ClassVar[bool] = False  # of the whole process

    def __init__(self) -> None:
        self.asked = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.ask)
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        term = self.before.get(signal.SIGTERM)
        self.restore()
        if self.passed_on and term is not None:
            self.before[signal.SIGTERM] = term
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def restore(self) -> None:
        while self.before:
            number, handler = self.before.popitem()
            signal.signal(number, handler)
