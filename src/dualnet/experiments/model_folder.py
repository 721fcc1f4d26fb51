"""The folder of a model, whichever command made it: its checkpoints and its lock."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dualnet import atomic
from dualnet.experiments import checkpoint
from dualnet.experiments.record import CHECKPOINTS

LOCK_FILE = "lock"


class ModelFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINTS

    @property
    def holds_model(self) -> bool:
        return bool(checkpoint.steps(self.checkpoints))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder and holds its lock within the context: two processes must not write to one folder.

        After an error, a lock file and empty folders that were made here are removed again.
        """
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        atomic.make_folder(self.path, "choose another --out")
        file = self.path / LOCK_FILE
        is_new = not file.exists()
        with ExitStack() as stack:
            try:
                stack.enter_context(FileLock(file, blocking=False))
            except Timeout as error:
                remedy = "wait for it or choose another --out"
                raise ValueError(f"{self.path}: another process is running here; {remedy}") from error
            try:
                yield
            except BaseException:
                if is_new:
                    file.unlink(missing_ok=True)
                    with suppress(OSError):
                        for folder in missing:  # the innermost first, up to the first that is not empty
                            folder.rmdir()
                raise
