"""Where the jobs of a command run, and which of them, as its flags say."""

from dataclasses import dataclass
from pathlib import Path

from dualnet.jobs.job import Executor
from dualnet.jobs.local_pool import LocalPool, processes
from dualnet.jobs.shard import Shard


@dataclass(frozen=True)
class Placement:
    jobs: int | None = None  # at a time; None: one per core, or one on a GPU
    side_by_side: int | None = None  # runs in a job; None: 5 on a GPU, 1 on the CPU
    shard: Shard | None = None  # None: all runs

    def executor(self, device: str, log: Path | None = None) -> Executor:
        """What runs the jobs. Their output goes to the log file, or to stderr together with their progress."""
        return LocalPool(*processes(device, self.jobs), log)
