"""Runs an experiment: checks its folders, then its seeds go through the stream. A stopped run is resumed."""

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
from dualnet.learners import learner_class, make_learner
from dualnet.runs.experiment import Experiment
from dualnet.runs.progress import RunDisplay
from dualnet.runs.run import NotFiniteError, Run
from dualnet.runs.run_folder import RunFolder
from dualnet.runs.stop import Stop
from dualnet.runs.together import Together
from dualnet.stream.stream import Stream, spec_under

Folder = TypeVar("Folder", Path, RunFolder)


def run(
    experiment: Experiment,
    folders: dict[int, Path],
    device: torch.device,
    display: RunDisplay | None = None,
    benchmark: Benchmark | None = None,
    validation: bool = False,
) -> list[int]:
    """Run the seeds, each into its folder; unfinished ones resume. Returns the seeds that were finished before.

    With `validation` on the validation tasks alone, by which options are chosen. `benchmark` is given if its images are
    read already. On CUDA all seeds run side by side, on the CPU one after the other. If one diverges, the others
    continue to the end; then NotFiniteError is raised.
    """
    benchmarks = Benchmarks(validation, {} if benchmark is None else {repr(experiment.benchmark): benchmark})
    there = checked_folders(experiment, folders, benchmarks)  # all of them, before the first one runs for hours
    todo = {seed: folder for seed, folder in there.items() if not folder.finished}
    if todo:
        tasks = benchmarks.get(experiment.benchmark)
        stream = stream_of(experiment, tasks, device)
        if not all(folder.begun for folder in todo.values()):
            try_encoder(experiment, stream.spec)
        diverged: dict[int, str] = {}
        with Stop() as stop:
            for group in seeds_apart(todo, device.type):
                with contextlib.ExitStack() as locks:
                    runs = []
                    for seed, folder in group.items():
                        locks.enter_context(folder.locked())
                        folder.prepare(experiment.with_seed(seed), tasks, device)
                        runs.append(Run(experiment.with_seed(seed), folder, stream))
                    # Seeds that were stopped at different steps continue one group after the other.
                    runs.sort(key=lambda run: run.step)
                    for _, same_step in itertools.groupby(runs, key=lambda run: run.step):
                        diverged |= Together(list(same_step), display or RunDisplay(), stop).run()
        if diverged:
            raise NotFiniteError(diverged)
    return [seed for seed in folders if seed not in todo]


@dataclass
class Benchmarks:
    """Benchmarks or their validation tasks, made once: their images are decoded here, before jobs need them."""

    validation: bool = False
    made: dict[str, Benchmark | Exception] = field(default_factory=dict)  # by their options

    def get(self, wanted: BenchmarkConfig) -> Benchmark:
        """Raises what went wrong when it was made, each time."""
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


def checked_folders(experiment: Experiment, paths: Mapping[int, Path], benchmarks: Benchmarks) -> dict[int, RunFolder]:
    """Raises ValueError if a run was begun there with other options, for another purpose or with other images."""
    folders = {seed: RunFolder(path) for seed, path in paths.items()}
    for seed, folder in folders.items():
        folder.check_purpose(benchmarks.validation)
        folder.check_same(experiment.with_seed(seed))
    there = list(folders.values())
    if not benchmarks.validation and all(folder.finished and not folder.moved(experiment) for folder in there):
        warn_of_other_images(experiment, there)  # without decoding an image
        return folders
    # Also where no run has begun: jobs find the images decoded, or none is started.
    benchmark = benchmarks.get(experiment.benchmark)
    for folder in there:
        if folder.begun:
            folder.check_same_stream(experiment, benchmark)
    return folders


def warn_of_other_images(experiment: Experiment, finished: Sequence[RunFolder]) -> None:
    """Where images or classes came or went since the runs were finished: nothing is run again."""
    try:
        split = experiment.benchmark.current_split()
        changed, why = [folder for folder in finished if split is not None and not folder.has_split(split)], ""
    except ValueError as error:  # such as classes that no longer make tasks
        changed, why = finished, f" ({error})"
    if changed:
        root = getattr(experiment.benchmark, "root", experiment.benchmark_name)
        warnings.warn(
            f"{root}: has other images or classes than when {changed[0].path} was run{why}; its result stays as it is: "
            "to learn them, choose another --out",
            stacklevel=2,
        )


def stream_of(experiment: Experiment, tasks: Benchmark, device: torch.device) -> Stream:
    """The stream of an experiment. Raises ValueError if its learner cannot learn it, before a folder is made."""
    kind = learner_class(experiment.learner_name)
    kind.check(spec_under(tasks, experiment.protocol), experiment.learner)
    epochs = kind.epochs_over_all(experiment.learner)
    if epochs and experiment.labels.late:
        raise ValueError(
            f"labels.delay and labels.delay_spread: {experiment.learner_name} trains on all tasks at once, without "
            "late labels; leave them at 0"
        )
    if kind.needs_boundaries(experiment.learner) and experiment.protocol == "task_free":
        raise ValueError(
            f"protocol: {experiment.protocol} has no task boundaries, which {experiment.learner_name} needs with these "
            "options; use task_free_boundaries, or for dualnet learner.soft_labels insertion"
        )
    return Stream(tasks, experiment.protocol, experiment.batch_size, device, experiment.labels, epochs)


def try_encoder(experiment: Experiment, spec: StreamSpec) -> None:
    """Raises ValueError if code or weights from outside cannot be used, before a folder is made."""
    if any(getattr(experiment.learner, option, None) is not None for option in ("start", "encoder")):
        make_learner(experiment.learner_name, spec, experiment.learner)


def seeds_apart(folders: Mapping[int, Folder], device: str) -> list[dict[int, Folder]]:
    """The seeds that run at a time: on CUDA all of them, side by side, on the CPU each alone."""
    if device == "cuda":
        return [dict(folders)] if folders else []
    return [{seed: folder} for seed, folder in folders.items()]
