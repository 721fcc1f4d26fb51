"""Jobs: seeds of one experiment as plain data, so that another process can run them (local_pool.py)."""

import shutil
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from dualnet.experiments import runner
from dualnet.experiments.experiment import parse
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.run import SeedsDivergedError
from dualnet.experiments.run_folder import RunFolder
from dualnet.experiments.stop import StopRequested
from dualnet.text import join_lines


@dataclass(frozen=True)
class Job:
    """Seeds to run. A pool may send it to another process, or to another machine with the same files."""

    name: str  # for messages
    experiment: dict[str, Any]  # as Experiment.mapping() gives it
    folders: dict[int, Path]  # run folders by seed
    device: str  # cpu or cuda
    validation: bool = False  # run on the validation tasks, for a search


@dataclass(frozen=True)
class JobResult:
    """How a job ended. Its measurements are in its run folders."""

    status: Literal["finished", "diverged", "stopped", "failed"]
    reason: str = ""  # one line
    diverged: dict[int, str] = field(default_factory=dict)  # reasons by seed; the other seeds are finished


def run_job(job: Job, display: RunDisplay | None = None) -> JobResult:
    try:
        device = torch.device(job.device)
        runner.run(parse(job.experiment), job.folders, device, display, validation=job.validation)
        result = JobResult("finished")
    except StopRequested:
        return JobResult("stopped")
    except SeedsDivergedError as error:
        result = JobResult("diverged", join_lines(error), error.reasons)
    except (ValueError, OSError) as error:
        return JobResult("failed", join_lines(error))
    except Exception as error:  # a bug, or a device out of memory
        traceback.print_exc()
        return JobResult("failed", join_lines(f"{type(error).__name__}: {error}"))
    if job.validation:  # the checkpoints of all points of a search would fill a disk
        for folder in job.folders.values():
            shutil.rmtree(RunFolder(folder).checkpoints, ignore_errors=True)
    return result
