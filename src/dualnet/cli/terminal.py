"""Output to the terminal, with control characters escaped, and signals from it."""

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from dualnet.text import escape


def print_line(line: str) -> None:
    print(escape(line))


def fail(message: str, code: int) -> int:
    print(f"dualnet: {escape(message.strip())}", file=sys.stderr)
    return code


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    fail(f"warning: {message}", 0)


def print_rich(renderable: Any, width: int) -> None:
    """Print a rich object whose text is already escaped. `width` is used if the output is not a terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else width).print(renderable)


def prepare_streams() -> None:
    """Replace characters that the terminal cannot encode by `?`. Raises ValueError if standard output is closed."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 (for the whole process)
    if sys.stdout is None:
        raise ValueError("standard output is closed; redirect it to a file or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def handled_signals() -> Iterator[Callable[[], None]]:
    """On SIGINT and SIGTERM, print one line and exit, unless the caller has installed its own handlers.

    Once the function that the context yields has been called, they raise KeyboardInterrupt instead, so that files can
    be cleaned up.
    """
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    in_main = threading.current_thread() is threading.main_thread()
    handled = [number for number, handler in defaults.items() if in_main and signal.getsignal(number) == handler]

    def install(handler: Any = signal.default_int_handler) -> None:
        for number in handled:
            signal.signal(number, handler)

    install(exit_at_once)
    try:
        yield install
    finally:
        for number in handled:
            signal.signal(number, defaults[number])


def exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Without an exception, which an import might swallow or print."""
    os.write(2, b"dualnet: stopped before it started\n")
    os._exit(130)
