"""Runs the seeds of an experiment: checks their folders, then trains them. Stopped runs are resumed."""

import contextlib
import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from dualnet.batch import StreamSpec
from dualnet.data import Benchmark, BenchmarkConfig
from dualnet.experiments.experiment import Experiment
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.run import Run, SeedsDivergedError
from dualnet.experiments.run_folder import RunFolder
from dualnet.experiments.stop import Stop
from dualnet.experiments.training_loop import TrainingLoop
from dualnet.learners import learner_class, make_learner
from dualnet.stream.stream import Stream, spec_for_protocol

Folder = TypeVar("Folder", Path, RunFolder)


def run(
    experiment: Experiment,
    folders: dict[int, Path],
    device: torch.device,
    display: RunDisplay | None = None,
    benchmark: Benchmark | None = None,
    validation: bool = False,
) -> list[int]:
    """Run the seeds, each in its folder; unfinished runs are resumed. Returns the seeds that were finished before.

    `validation` trains and tests on the validation tasks, for choosing options. `benchmark` can be passed if it is
    already loaded. On CUDA all seeds run side by side, on the CPU one after the other. If one diverges, the others
    continue to the end; then SeedsDivergedError is raised.
    """
    if benchmark is not None and experiment.benchmark.has_order_by_seed:
        raise ValueError("benchmark: is made for each seed if benchmark.order_seed is seed; leave it out")
    benchmarks = BenchmarkCache(validation, {} if benchmark is None else {repr(experiment.benchmark): benchmark})
    checked = checked_folders(experiment, folders, benchmarks)  # all of them, before the first one runs for hours
    todo = {seed: folder for seed, folder in checked.items() if not folder.finished}
    if todo:
        tasks = {seed: benchmarks.get(experiment.with_seed(seed).ordered_benchmark) for seed in todo}
        streams = {id(one): stream_of(experiment, one, device) for one in tasks.values()}  # mostly one for all seeds
        if not all(folder.started for folder in todo.values()):
            check_encoder(experiment, next(iter(streams.values())).spec)
        diverged: dict[int, str] = {}
        with Stop() as stop:
            for group in seed_groups(todo, device.type):
                with contextlib.ExitStack() as locks:
                    runs = []
                    for seed, folder in group.items():
                        locks.enter_context(folder.locked())
                        folder.prepare(experiment.with_seed(seed), tasks[seed], device)
                        runs.append(Run(experiment.with_seed(seed), folder, streams[id(tasks[seed])]))
                    # Seeds that were stopped at different steps, or whose tasks in their class orders have different
                    # numbers of examples, continue one group after the other.
                    runs.sort(key=next_steps)
                    for _, same_steps in itertools.groupby(runs, key=next_steps):
                        diverged |= TrainingLoop(list(same_steps), display or RunDisplay(), stop).run()
        if diverged:
            raise SeedsDivergedError(diverged)
    return [seed for seed in folders if seed not in todo]


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
        if isinstance(found := self.made[key], Exception):
            raise found
        if found.validation != self.validation:
            needed = "validation tasks, those of `make_validation()`" if self.validation else "the tasks of `make()`"
            raise ValueError(f"benchmark.validation is {found.validation}; pass {needed}")
        return found


def checked_folders(
    experiment: Experiment, paths: Mapping[int, Path], benchmarks: BenchmarkCache
) -> dict[int, RunFolder]:
    """The folders by seed. Raises ValueError if one holds a run with other options, purpose or images."""
    folders = {seed: RunFolder(path) for seed, path in paths.items()}
    for seed, folder in folders.items():
        folder.check_purpose(benchmarks.validation)
        folder.check_same(experiment.with_seed(seed))
    if not benchmarks.validation and all(
        folder.finished and not folder.moved(experiment) for folder in folders.values()
    ):
        warn_of_changed_images(experiment, list(folders.values()))  # without decoding an image
        return folders
    for seed, folder in folders.items():
        # Also if no run was started yet: the images are decoded, or found to be unusable, before any job starts.
        benchmark = benchmarks.get(experiment.with_seed(seed).ordered_benchmark)
        if folder.started:
            folder.check_same_stream(experiment, benchmark)
    return folders


def warn_of_changed_images(experiment: Experiment, finished: Sequence[RunFolder]) -> None:
    """Warn if images or classes were added or removed since the runs were finished; these are not run again."""
    try:
        split = experiment.ordered_benchmark.current_split()  # the same in every class order
        changed, why = [folder for folder in finished if split is not None and not folder.has_split(split)], ""
    except ValueError as error:  # such as too few classes for the tasks
        changed, why = finished, f" ({error})"
    if changed:
        root = getattr(experiment.benchmark, "root", experiment.benchmark_name)
        warnings.warn(
            f"{root}: its images or classes have changed since {changed[0].path} was run{why}; that result is kept; to "
            "run with the new images, choose another --out",
            stacklevel=2,
        )


def next_steps(run: Run) -> tuple[int, list[int]]:
    """Runs for which this is equal have the same steps before them, with batches of the same shapes."""
    return run.step, run.stream.sizes


def stream_of(experiment: Experiment, tasks: Benchmark, device: torch.device) -> Stream:
    """The stream of an experiment. Raises ValueError, before a folder is made, if its learner cannot learn it."""
    kind = learner_class(experiment.learner_name)
    kind.check(spec_for_protocol(tasks, experiment.protocol), experiment.learner)
    epochs = kind.epochs_over_all(experiment.learner)
    if epochs and experiment.labels.are_late:
        raise ValueError(
            f"labels.delay and labels.delay_spread: {experiment.learner_name} trains on all tasks at once, without "
            "late labels; leave them at 0"
        )
    if kind.needs_boundaries(experiment.learner) and experiment.protocol == "task_free":
        raise ValueError(
            f"protocol: {experiment.protocol} has no task boundaries, which {experiment.learner_name} needs with these "
            "options; use task_free_boundaries, or for dualnet learner.soft_labels insertion"
        )
    options = experiment.labels, epochs, experiment.blurry
    return Stream(tasks, experiment.protocol, experiment.batch_size, device, *options)


def check_encoder(experiment: Experiment, spec: StreamSpec) -> None:
    """Raises ValueError if an encoder or weights from outside cannot be used, before a folder is made."""
    if any(getattr(experiment.learner, option, None) is not None for option in ("start", "encoder")):
        make_learner(experiment.learner_name, spec, experiment.learner)


def seed_groups(folders: Mapping[int, Folder], device: str) -> list[dict[int, Folder]]:
    """Groups of seeds that are trained side by side: on CUDA one group of all, on the CPU a group for each."""
    if device == "cuda":
        return [dict(folders)] if folders else []
    return [{seed: folder} for seed, folder in folders.items()]
