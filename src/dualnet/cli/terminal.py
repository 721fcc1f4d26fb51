"""What reaches the terminal, escaped where it comes from data, and the signals that come from it."""

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from dualnet.text import printable


def say(line: str) -> None:
    print(printable(line))


def fail(message: str, code: int) -> int:
    print(f"dualnet: {printable(message.strip())}", file=sys.stderr)
    return code


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    fail(f"warning: {message}", 0)


def show(renderable: Any, width: int) -> None:
    """Tables of rich, whose cells are escaped already, of that width where the output is no terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else width).print(renderable)


def prepare_streams() -> None:
    """A character that the terminal does not know becomes `?`. Raises ValueError if the output is closed."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 (for the whole process)
    if sys.stdout is None:
        raise ValueError("standard output is closed; redirect it to a file or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def handled_signals() -> Iterator[Callable[[], None]]:
    """SIGINT and SIGTERM wherever no run handles them: one line and the end. A handler that someone else has set stays.

    After a call of what the context gives, they raise KeyboardInterrupt: there may be files to clean up.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    in_main = threading.current_thread() is threading.main_thread()
    ours = [number for number, handler in usual.items() if in_main and signal.getsignal(number) == handler]

    def handle(handler: Any = signal.default_int_handler) -> None:
        for number in ours:
            signal.signal(number, handler)

    handle(leave)
    try:
        yield handle
    finally:
        for number in ours:
            signal.signal(number, usual[number])


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """At once: an exception within an import may be swallowed, or printed."""
    os.write(2, b"dualnet: stopped before anything began\n")
    os._exit(130)
