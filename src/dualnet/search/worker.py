"""A process of a search: takes jobs from its parent, a line each, answers with a line each, and ends with it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import traceback
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from dualnet.data import Benchmark, BenchmarkConfig
from dualnet.runs import runner
from dualnet.runs.experiment import parse
from dualnet.runs.run import NotFiniteError
from dualnet.runs.run_folder import RunFolder
from dualnet.runs.stop import Stop, StopAsked
from dualnet.search.point import write_failure


class Worker:
    """Keeps the validation tasks of the last job: most grids have one benchmark."""

    def __init__(self) -> None:
        self.made: tuple[BenchmarkConfig, Benchmark] | None = None

    def work(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run the seeds of a point. `failed`: one diverged, and would again; `trouble`: the next time may go well."""
        folders = {int(seed): Path(folder) for seed, folder in job["folders"].items()}
        try:
            experiment = parse(job["experiment"])
            tasks = self.tasks(experiment.benchmark)
            runner.validate(experiment, folders, torch.device(job["device"]), tasks=tasks)
            drop_checkpoints(folders)
        except StopAsked:
            return {"stopped": True}
        except NotFiniteError as error:
            for seed, reason in error.reasons.items():
                write_failure(folders[seed], shortened(reason))
            drop_checkpoints(folders)
            return {"failed": True}
        except Exception as error:
            traceback.print_exc()
            return {"trouble": " ".join(f"{type(error).__name__}: {error}".split())}
        finally:
            if job["device"] == "cuda":
                torch.cuda.empty_cache()
        return {"finished": True}

    def tasks(self, benchmark: BenchmarkConfig) -> Benchmark:
        if self.made is None or self.made[0] != benchmark:
            self.made = benchmark, benchmark.make_validation()
        return self.made[1]


def drop_checkpoints(folders: dict[int, Path]) -> None:
    """Figures are all that a search needs; the weights of every point, twice each, fill a disk."""
    for folder in folders.values():
        shutil.rmtree(RunFolder(folder).checkpoints, ignore_errors=True)


def shortened(reason: str) -> str:
    """Without the path, which moves with the folder, and the advice, which is for one run."""
    folder, _, what = reason.partition(": ")
    return f"{Path(folder).name}: {what.partition(';')[0]}"


def listen(jobs: SimpleQueue[str]) -> None:
    """The pipe ends when the parent closes it, and when the parent is killed: nothing is left to work for."""
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)  # what is on disk is whole: files are put into place as a whole


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a learner prints is no answer
    jobs: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=listen, args=(jobs,), daemon=True).start()
    Stop.passed_on = True
    worker = Worker()
    while True:
        print(json.dumps(worker.work(json.loads(jobs.get()))), file=answers, flush=True)


if __name__ == "__main__":
    main()
