"""Trains rows of the paper's tables side by side in one engine, as `dualnet reproduce` does with the seeds of one row.

    python -m benchmarks.side_by_side 'table-3/*/n-20' --seeds 0,1 --seconds 1500 --out results/reproduce

The rows must have the same stream; with `order_seed: seed` each seed has its own class order. Run folders are those of
`dualnet reproduce`, which resumes them; this command does too if all were stopped at the same step. `--seconds`: if
all are expected to take longer, the last run is stopped at the end of a task; the next decision is made after a task
has been measured without it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console

from dualnet import reproduce
from dualnet.cli.flags import seeds
from dualnet.experiments.experiment import Experiment, command_options
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.run import Run, SeedsDivergedError
from dualnet.experiments.runner import BenchmarkCache, checked_folders, stream_of
from dualnet.experiments.stop import Stop, StopRequested
from dualnet.experiments.training_loop import TrainingLoop
from dualnet.machine import choose_device

OWN = ("name", "seed", "learner_name", "learner")  # what may differ between experiments that are trained side by side


class LimitedLoop(TrainingLoop):
    """A training loop that stops its last run after a task if all together would take longer than `seconds`."""

    def __init__(self, runs: Sequence[Run], stop: Stop, seconds: float) -> None:
        super().__init__(runs, RunDisplay(Console(stderr=True)), stop)
        self.seconds, self.began = seconds, time.monotonic()
        self.task_began = self.began
        self.is_measure = False  # of later tasks: the first is not, since kernels are chosen and the step is captured

    @property
    def title(self) -> str:
        return f"{len({run.experiment.name for run in self.runs})} rows, {len(self.runs)} runs"

    def end_task(self) -> None:
        super().end_task()  # writes a checkpoint
        now, left = time.monotonic(), self.stream.num_steps - self.step
        expected = now - self.began + (now - self.task_began) * left / len(self.stream.periods[0].steps)
        print(f"step {self.step}: {now - self.began:.0f} of {expected:.0f} s, {len(self.runs)} runs", flush=True)
        too_slow = self.is_measure and left > 0 and expected > self.seconds and len(self.runs) > 1
        if too_slow:
            self.wait_for_writing()
            print(f"{self.runs.pop().folder.path}: stopped for lack of time", flush=True)
            self.engine = self.make_engine()
        self.is_measure, self.task_began = not too_slow, time.monotonic()


def train(wanted: Mapping[Path, Experiment], device: torch.device, seconds: float) -> None:
    """Train the experiments that are not finished, each in its folder."""
    benchmarks = BenchmarkCache()
    todo = [
        (experiment, folder)
        for path, experiment in wanted.items()
        for folder in checked_folders(experiment, {experiment.seed: path}, benchmarks).values()
        if not folder.finished
    ]
    if not todo:
        return
    first, streams = todo[0][0], []
    for experiment, _ in todo:
        stream = stream_of(experiment, benchmarks.get(experiment.ordered_benchmark), device)
        same = dataclasses.replace(experiment, **{key: getattr(first, key) for key in OWN}) == first
        streams.append(next((known for known in streams if known.tasks is stream.tasks), stream))  # images once
        if not same or len({(*one.sizes, one.epochs_over_all) for one in (streams[0], stream)}) > 1:
            raise ValueError(f"{experiment.name}: has another stream or precision than {first.name}")
    with Stop() as stop, contextlib.ExitStack() as locks:
        runs = []
        for (experiment, folder), stream in zip(todo, streams, strict=True):
            locks.enter_context(folder.locked())
            folder.prepare(experiment, benchmarks.get(experiment.ordered_benchmark), device)
            runs.append(Run(experiment, folder, stream))
        if len({run.step for run in runs}) > 1:
            raise ValueError("the runs were stopped at different steps; resume them with `dualnet reproduce`")
        if diverged := LimitedLoop(runs, stop, seconds).run():
            raise SeedsDivergedError(diverged)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.side_by_side", description=__doc__)
    parser.add_argument(
        "rows", type=lambda text: text.split(","), help="names or patterns, as for `dualnet reproduce --rows`"
    )
    parser.add_argument("--table", default="all")
    parser.add_argument("--seeds", type=seeds, default=[0])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    arguments, rest = parser.parse_known_args(argv)
    try:
        rows = reproduce.select(reproduce.read_rows(arguments.table), arguments.rows)
        overrides = command_options(rest, ())
        wanted = {
            arguments.out / row.runs_of / f"seed-{seed}": row.experiment(overrides).with_seed(seed)
            for seed in arguments.seeds
            for row in rows  # two rows may share their runs
        }
        train(wanted, choose_device(arguments.device), arguments.seconds)
    except (ValueError, SeedsDivergedError, StopRequested) as error:
        raise SystemExit(f"side_by_side: {error}") from error


if __name__ == "__main__":
    main()
