"""A guard for objects that only one thread may use at a time: a second thread gets an error instead of waiting."""

import threading
from typing import Any


class ThreadGuard:
    """`with guard:` raises RuntimeError while another thread is inside. The same thread may enter again."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            raise RuntimeError("this learner is in use by another thread and is not thread-safe; use a lock")

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    def __reduce__(self) -> Any:
        """A copy of a learner gets its own guard."""
        return ThreadGuard, ()
