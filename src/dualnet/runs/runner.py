"""Runs an experiment: checks its folders, then its seeds go through the stream. A stopped run is resumed."""

import contextlib
import itertools
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch

from dualnet.data import Benchmark, BenchmarkConfig
from dualnet.learners import Learner, learner_class
from dualnet.runs.experiment import Experiment
from dualnet.runs.progress import RunDisplay
from dualnet.runs.run import NotFiniteError, Run
from dualnet.runs.run_folder import RunFolder
from dualnet.runs.stop import Stop
from dualnet.runs.together import Together
from dualnet.stream.stream import Stream, spec_under


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
    tasks = cache(lambda: tasks_for(experiment.benchmark, validation, benchmark))
    there = {seed: RunFolder(path) for seed, path in folders.items()}
    check_folders(experiment, there, validation, tasks)  # all of them, before the first one runs for hours
    todo = {seed: folder for seed, folder in there.items() if not folder.finished}
    if todo:
        stream = stream_of(experiment, tasks(), device)
        diverged: dict[int, str] = {}
        with Stop() as stop:
            for seeds in groups(list(todo), device):
                with contextlib.ExitStack() as locks:
                    runs = []
                    for seed in seeds:
                        locks.callback(todo[seed].release)
                        todo[seed].prepare(experiment.with_seed(seed), tasks(), device)
                        runs.append(Run(experiment.with_seed(seed), todo[seed], stream))
                    # Seeds that were stopped at different steps continue one group after the other.
                    runs.sort(key=lambda run: run.step)
                    for _, same_step in itertools.groupby(runs, key=lambda run: run.step):
                        diverged |= Together(list(same_step), display or RunDisplay(), stop).run()
        if diverged:
            raise NotFiniteError(diverged)
    return [seed for seed in folders if seed not in todo]


def tasks_for(config: BenchmarkConfig, validation: bool, given: Benchmark | None = None) -> Benchmark:
    """A benchmark, or its validation tasks."""
    tasks = given or (config.make_validation() if validation else config.make())
    if tasks.validation != validation:
        wanted = "validation tasks, those of `make_validation()`" if validation else "the tasks of `make()`"
        raise ValueError(f"benchmark.validation is {tasks.validation}; pass {wanted}")
    return tasks


def check_folders(
    experiment: Experiment, folders: Mapping[int, RunFolder], validation: bool, tasks: Callable[[], Benchmark]
) -> None:
    """Raises ValueError if a run was begun there with other options, for another purpose or with other images."""
    for seed, folder in folders.items():
        folder.check_purpose(validation)
        folder.check_same(experiment.with_seed(seed))
    there = folders.values()
    if not validation and all(folder.finished and not folder.moved(experiment) for folder in there):
        warn_of_other_images(experiment, folders)  # without decoding an image
        return
    benchmark = tasks()  # also where no run has begun: jobs find the images decoded, or none is started
    for folder in there:
        if folder.begun:
            folder.check_same_stream(experiment, benchmark)


def warn_of_other_images(experiment: Experiment, finished: Mapping[int, RunFolder]) -> None:
    """Where images or classes came or went since the runs were finished: nothing is run again."""
    try:
        split = experiment.benchmark.current_split()
        changed = [folder for folder in finished.values() if split is not None and not folder.has_split(split)]
        why = ""
    except ValueError as error:  # such as classes that no longer make tasks
        changed, why = list(finished.values()), f" ({error})"
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
    check_learner(experiment, kind)
    epochs = kind.epochs_over_all(experiment.learner)
    return Stream(tasks, experiment.protocol, experiment.batch_size, device, experiment.labels, epochs)


def check_learner(experiment: Experiment, kind: type[Learner]) -> None:
    if kind.epochs_over_all(experiment.learner) and experiment.labels.late:
        raise ValueError(
            f"labels.delay and labels.delay_spread: {experiment.learner_name} trains on all tasks at once, without "
            "late labels; leave them at 0"
        )
    if kind.needs_boundaries(experiment.learner) and experiment.protocol == "task_free":
        raise ValueError(
            f"protocol: {experiment.protocol} has no task boundaries, which {experiment.learner_name} needs with these "
            "options; use task_free_boundaries, or for dualnet learner.soft_labels insertion"
        )


def groups(seeds: list[int], device: torch.device) -> list[list[int]]:
    return [seeds] if device.type == "cuda" else [[seed] for seed in seeds]
