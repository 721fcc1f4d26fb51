"""Run folders without shared storage: a job works on a copy, and each change is carried to the machine that asked."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dualnet import atomic
from dualnet.experiments.model_folder import LOCK_FILE, ModelFolder
from dualnet.experiments.record import CHECKPOINTS, LOG_FILE, RESULT_FILE
from dualnet.jobs.job import Job, JobResult

CARRY_EVERY = 5.0  # seconds
Files = dict[str, bytes]  # by path relative to the run folder


class CarriedRuns:
    """The run folders on the machine that asked. It holds their locks as long as it lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.locks = ExitStack()
        self.locked: set[Path] = set()

    def read(self, run: Path) -> Files:
        if run not in self.locked:
            self.locks.enter_context(ModelFolder(self.folder / run).locked())
            self.locked.add(run)
        return {name: (self.folder / run / name).read_bytes() for name in file_names(self.folder / run)}

    def write(self, run: Path, changed: Files, names: list[str]) -> None:
        """Write the changed files and delete those that are not in `names`.

        The log comes before the checkpoint that counts its bytes, and the result last: a crash between two files
        leaves a folder from which the run continues.
        """
        for name in sorted(changed, key=lambda name: (name == RESULT_FILE, name.startswith(CHECKPOINTS))):
            file = self.folder / run / name
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(file, changed[name])
        for name in set(file_names(self.folder / run)) - set(names):
            (self.folder / run / name).unlink()


def file_names(run: Path) -> list[str]:
    """The files of a run folder; the log last, so that it has all that a checkpoint counts which was read before."""
    names = [str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()]
    kept = [name for name in names if name != LOCK_FILE and not name.endswith(atomic.TEMPORARY)]
    return sorted(kept, key=lambda name: (name == LOG_FILE, name))


@dataclass
class Copy:
    """A run folder on the node of the job."""

    folder: Path
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)  # time and size of each file, as it was sent

    def unpack(self, files: Files) -> None:
        self.folder.mkdir()
        for name, content in files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            self.sent[name] = stamp(file)

    def changes(self) -> tuple[Files, list[str]]:
        """The content of the files that have changed since the last call, and the names of all."""
        changed, names = {}, []
        for name in file_names(self.folder):
            try:
                now = stamp(self.folder / name)
                if now != self.sent.get(name):
                    changed[name] = (self.folder / name).read_bytes()
            except FileNotFoundError:  # an older checkpoint
                continue
            names.append(name)
            self.sent[name] = now
        return changed, names


def stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size


def carry(job: Job, runs: Any, temporary: Path, run: Callable[[Job], JobResult]) -> JobResult:
    """Run a job on copies of its folders. `runs` is the actor of a CarriedRuns."""
    copies = {folder: Copy(temporary / str(number)) for number, folder in enumerate(job.runs)}

    def send() -> None:
        for folder, copy in copies.items():
            changed, names = copy.changes()
            wait(runs.write.remote(folder, changed, names))

    def keep_sending() -> None:
        while not ended.wait(CARRY_EVERY):
            send()

    try:
        for folder, copy in copies.items():
            copy.unpack(wait(runs.read.remote(folder)))
    except ValueError as error:  # another process runs there
        return JobResult("failed", str(error))
    ended = threading.Event()
    sender = threading.Thread(target=keep_sending, daemon=True)
    sender.start()
    result = run(replace(job, runs={copies[folder].folder: options for folder, options in job.runs.items()}))
    ended.set()
    sender.join()
    send()
    return replace(result, reason=result.reason.replace(f"{temporary}/", ""))


def wait(reference: Any) -> Any:
    """As ray.get, which would lend the CPUs of this job to another one meanwhile."""
    return reference.future().result()
