"""Trains runs, each in its folder, side by side in one engine. Stopped runs are resumed."""

import contextlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.experiments.experiment import Experiment
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.run import Run, RunsDivergedError
from dualnet.experiments.run_folder import RunFolder
from dualnet.experiments.stop import Stop
from dualnet.experiments.training_loop import TrainingLoop
from dualnet.learners import learner_class
from dualnet.stream.stream import Stream, spec_for_protocol

OWN_OPTIONS = ("name", "seed", "learner")  # what may differ between runs that are trained side by side


@dataclass
class BenchmarkCache:
    """Benchmarks, or their validation tasks, each made once, so that images are decoded before jobs need them."""

    validation: bool = False
    made: dict[str, Benchmark | Exception] = field(default_factory=dict)  # by their options

    def get(self, wanted: BenchmarkConfig) -> Benchmark:
        """The benchmark of these options. If making it fails, every later call raises the same error."""
        key = repr(wanted)
        if key not in self.made:
            try:
                self.made[key] = wanted.make_validation() if self.validation else wanted.make()
            except Exception as error:
                self.made[key] = error
        if isinstance(benchmark := self.made[key], Exception):
            raise benchmark
        if benchmark.validation != self.validation:
            needed = "validation tasks, those of `make_validation()`" if self.validation else "the tasks of `make()`"
            raise ValueError(f"benchmark.validation is {benchmark.validation}; pass {needed}")
        return benchmark


def run(
    runs: Mapping[Path, Experiment],
    device: torch.device,
    display: RunDisplay | None = None,
    benchmarks: BenchmarkCache | None = None,
) -> list[Path]:
    """Train the runs that are not finished, each in its folder. Returns the folders that were finished before.

    Runs with the same steps ahead are trained side by side, others one group after the other. If one diverges, or has
    diverged before, the others continue to the end; then RunsDivergedError is raised.
    """
    benchmarks = benchmarks or BenchmarkCache()
    folders = checked_folders(runs, benchmarks)  # all of them, before the first one runs for hours
    before = [path for path in runs if folders[path].finished]
    todo = {path: run for path, run in runs.items() if path not in before and folders[path].diverged is None}
    streams = streams_of(todo, benchmarks, device)
    with Stop() as stop, contextlib.ExitStack() as locks:
        started = []
        for path, experiment in todo.items():
            locks.enter_context(folders[path].locked())
            started.append(Run(experiment, folders[path], streams[path]))
            folders[path].prepare(experiment, benchmarks.get(experiment.ordered_benchmark), device)
        for _, alike in itertools.groupby(sorted(started, key=steps_ahead), key=steps_ahead):
            TrainingLoop(list(alike), display or RunDisplay(), stop).run()
    if diverged := {path: reason for path, folder in folders.items() if (reason := folder.diverged) is not None}:
        raise RunsDivergedError(diverged)
    return before


def steps_ahead(run: Run) -> tuple[int, list[int], str]:
    """Runs for which this is equal have the same steps ahead, with batches of the same shapes.

    They may have been stopped at different steps, or have tasks of different sizes in their class orders.
    """
    return run.step, run.stream.sizes, steps_key(run.experiment)


def steps_key(experiment: Experiment) -> str:
    """Equal for experiments whose streams have the same steps, evaluations and precision."""
    shared = {key: value for key, value in experiment.mapping().items() if key not in OWN_OPTIONS}
    epochs = learner_class(experiment.learner_name).epochs_over_all(experiment.learner)
    return json.dumps([shared, epochs], sort_keys=True)


def streams_of(runs: Mapping[Path, Experiment], benchmarks: BenchmarkCache, device: torch.device) -> dict[Path, Stream]:
    """The stream of each run. Runs on the same tasks share one, so that the device holds the images once."""
    made: dict[tuple[int, str], Stream] = {}
    streams = {}
    for path, experiment in runs.items():
        tasks = benchmarks.get(experiment.ordered_benchmark)
        check_learner(experiment, tasks)
        key = id(tasks), steps_key(experiment)
        if key not in made:
            made[key] = stream_of(experiment, tasks, device)
        streams[path] = made[key]
    return streams


def check_learner(experiment: Experiment, tasks: Benchmark) -> None:
    """Raises ValueError, before a folder is made, if the learner cannot learn the stream."""
    kind = learner_class(experiment.learner_name)
    kind.check(spec_for_protocol(tasks, experiment.protocol), experiment.learner)
    if kind.epochs_over_all(experiment.learner) and experiment.labels.are_late:
        raise ValueError(
            f"labels.delay and labels.delay_spread: {experiment.learner_name} trains on all tasks at once, without "
            "late labels; leave them at 0"
        )
    if kind.needs_boundaries(experiment.learner) and experiment.protocol == "task_free":
        raise ValueError(
            f"protocol: {experiment.protocol} has no task boundaries, which {experiment.learner_name} needs with these "
            "options; use task_free_boundaries, or for dualnet learner.soft_labels.when insertion"
        )


def stream_of(experiment: Experiment, tasks: Benchmark, device: torch.device) -> Stream:
    epochs = learner_class(experiment.learner_name).epochs_over_all(experiment.learner)
    options = experiment.labels, epochs, experiment.blurry
    return Stream(tasks, experiment.protocol, experiment.batch_size, device, *options)


def checked_folders(runs: Mapping[Path, Experiment], benchmarks: BenchmarkCache) -> dict[Path, RunFolder]:
    """The folders of runs. Raises ValueError if one holds a run with other options, purpose or images."""
    folders = {path: RunFolder(path) for path in runs}
    for path, experiment in runs.items():
        folders[path].check_purpose(benchmarks.validation)
        folders[path].check_same(experiment)
    is_done = [folder.finished and not folder.moved(runs[path]) for path, folder in folders.items()]
    if all(is_done) and not benchmarks.validation:
        return folders  # without decoding an image
    for path, experiment in runs.items():
        # Also if no run was started yet: the images are decoded, or found to be unusable, before any job starts.
        benchmark = benchmarks.get(experiment.ordered_benchmark)
        if folders[path].started:
            folders[path].check_same_stream(experiment, benchmark)
    return folders
