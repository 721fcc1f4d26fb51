"""Jobs: runs that are trained side by side, as plain data, and the interface of whatever runs them."""

import contextlib
import shutil
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch

from dualnet.experiments import runner
from dualnet.experiments.experiment import parse
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.run import RunsDivergedError
from dualnet.experiments.run_folder import RunFolder
from dualnet.experiments.stop import Stop, StopRequested
from dualnet.text import join_lines


@dataclass(frozen=True)
class Job:
    """Runs to train side by side in one process."""

    runs: dict[Path, dict[str, Any]]  # by run folder: options as Experiment.mapping() gives them
    device: str  # cpu or cuda
    validation: bool = False  # run on the validation tasks, for a search


@dataclass(frozen=True)
class JobResult:
    """How a job ended. What it has measured, and which runs have diverged, is in its run folders."""

    status: Literal["finished", "stopped", "failed"]
    reason: str = ""  # one line


class Executor(ABC):
    """Where jobs run: in processes of this machine (local_pool.py), or anywhere that sees the same folders.

    A job is plain data, and `run_job` is all that its process calls. What it has done is in its run folders, with
    checkpoints: a job that is lost with its process is submitted again, here or elsewhere, and resumes. Only its
    JobResult comes back. Leaving the context ends the jobs that still run; they can be resumed.
    """

    threads: int | None  # of each job; None: as many as PyTorch chooses

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Accept a job, also while results are collected. It runs when there is room for it."""

    @abstractmethod
    def collect(self, stop: Stop) -> Iterator[tuple[Job, JobResult]]:
        """Each submitted job with its result, in the order in which they end.

        Once a stop is requested, running jobs save their state (`stopped`), and the others are dropped.
        """

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...


def run_job(job: Job, display: RunDisplay | None = None) -> JobResult:
    try:
        runs = {folder: parse(options) for folder, options in job.runs.items()}
        with contextlib.suppress(RunsDivergedError):
            runner.run(runs, torch.device(job.device), display, runner.BenchmarkCache(job.validation))
    except StopRequested:
        return JobResult("stopped")
    except (ValueError, OSError) as error:
        return JobResult("failed", join_lines(error))
    except Exception as error:  # a bug, or a device out of memory
        traceback.print_exc()
        return JobResult("failed", join_lines(f"{type(error).__name__}: {error}"))
    if job.validation:  # the checkpoints of all points of a search would fill a disk
        for folder in job.runs:
            shutil.rmtree(RunFolder(folder).checkpoints, ignore_errors=True)
    return JobResult("finished")
