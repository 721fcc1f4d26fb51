"""Jobs: seeds of one experiment, as plain data. A JobPool runs them: processes of this machine, or a cluster."""

import shutil
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from dualnet.runs import runner
from dualnet.runs.experiment import parse
from dualnet.runs.progress import RunDisplay
from dualnet.runs.run import NotFiniteError
from dualnet.runs.run_folder import RunFolder
from dualnet.runs.stop import Stop, StopAsked

MAX_REASON = 500  # characters


@dataclass(frozen=True)
class Job:
    """A pool may hand it to another process, or to another machine with the same files."""

    name: str  # for messages
    experiment: dict[str, Any]  # as Experiment.mapping() gives it
    folders: dict[int, Path]  # run folders by seed
    device: str  # cpu or cuda
    validation: bool = False  # on the validation tasks rather than the test tasks, for a search


@dataclass(frozen=True)
class JobResult:
    """How a job ended. What it measured is in its run folders."""

    status: Literal["finished", "diverged", "stopped", "failed"]
    reason: str = ""  # one line
    diverged: dict[int, str] = field(default_factory=dict)  # reasons by seed; the other seeds are finished


class JobPool(Protocol):
    """Where jobs run."""

    def run(self, jobs: Sequence[Job], stop: Stop) -> Iterator[tuple[Job, JobResult]]:
        """Each job with its result, in the order in which they end.

        Once a stop is requested, running jobs save themselves (`stopped`) and no other is started.
        """
        ...


def run_job(job: Job, display: RunDisplay | None = None) -> JobResult:
    """Run a job in this process."""
    try:
        device = torch.device(job.device)
        runner.run(parse(job.experiment), job.folders, device, display, validation=job.validation)
        result = JobResult("finished")
    except StopAsked:
        return JobResult("stopped")
    except NotFiniteError as error:
        result = JobResult("diverged", one_line(str(error)), error.reasons)
    except (ValueError, OSError) as error:
        return JobResult("failed", one_line(str(error)))
    except Exception as error:  # a bug, or a device without memory left
        traceback.print_exc()
        return JobResult("failed", one_line(f"{type(error).__name__}: {error}"))
    if job.validation:  # the weights of every point of a search would fill a disk
        for folder in job.folders.values():
            shutil.rmtree(RunFolder(folder).checkpoints, ignore_errors=True)
    return result


def one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON]
