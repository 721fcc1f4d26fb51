"""A guard for objects that one thread may use at a time: a second one is refused rather than kept waiting."""

import threading
from typing import Any


class OneThread:
    """`with guard:` raises RuntimeError while another thread is inside. The same thread may enter again."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            raise RuntimeError("this learner is in use by another thread, and is not thread-safe; take turns by a lock")

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    def __reduce__(self) -> Any:
        """A copy of a learner has a guard of its own."""
        return OneThread, ()
