"""Preloaded by the fork server of a LocalPool: unblocks SIGINT and SIGTERM, blocked in the server, in its children."""

import atexit
import contextlib
import os
import signal
from multiprocessing import forkserver
from pathlib import Path

os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM)))


@atexit.register
def remove_socket() -> None:
    """Remove the socket of the server and its folder, as the pool's process does unless it is killed."""
    socket = Path(forkserver._forkserver._forkserver_address or "")  # pyright: ignore[reportAttributeAccessIssue]
    with contextlib.suppress(OSError):  # removed already, or the folder has other sockets too
        socket.unlink()
        socket.parent.rmdir()
