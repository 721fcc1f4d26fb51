"""Where the jobs of a command run, and which of them, as its flags say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from dualnet.jobs.job import Executor
from dualnet.jobs.local_pool import LocalPool, processes
from dualnet.jobs.shard import Shard
from dualnet.machine import choose_device


@dataclass(frozen=True)
class Placement:
    jobs: int | None = None  # at a time; None: one per core, or one on a GPU
    side_by_side: int | None = None  # runs in a job; None: 5 on a GPU, 1 on the CPU
    shard: Shard | None = None  # None: all runs
    on: str = "local"  # or ray, or ray=ADDRESS
    cpus_per_job: int = 1  # on Ray, as the following
    gpus_per_job: float = 0.0
    no_shared_folder: bool = False

    @property
    def is_local(self) -> bool:
        return self.on == "local"

    def device(self, requested: Literal["auto", "cpu", "cuda"]) -> torch.device:
        """The device of the jobs; on Ray it is that of other machines."""
        if self.is_local:
            return choose_device(requested)
        if requested == "cuda" and not self.gpus_per_job:
            raise ValueError(
                "--device cuda: on Ray a job has no GPU unless --gpus-per-job gives it one, or a part of one"
            )
        return torch.device("cuda" if self.gpus_per_job and requested != "cpu" else "cpu")

    def executor(self, device: str, out: Path, log: Path | None = None) -> Executor:
        """What runs the jobs. Their output goes to the log file, or to stderr together with their progress."""
        if self.is_local:
            return LocalPool(*processes(device, self.jobs), log)
        from dualnet.jobs.ray_cluster import RayCluster, address_of

        gpus = self.gpus_per_job if device == "cuda" else 0
        return RayCluster(address_of(self.on), out, self.cpus_per_job, gpus, self.no_shared_folder, log)
