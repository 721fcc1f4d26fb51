"""What a run says of its stream: the data set and its size, the classes of each task, the accuracy of guessing."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from dualnet.experiments.record import RunRecord
from dualnet.options import is_whole
from dualnet.text import escape, pluralise

SPLITS = ("train", "training", "val", "test")  # folders named after a part of a data set


def data_set_names(runs: Sequence[RunRecord]) -> list[str]:
    """The data set of each run: the image folder for `image_folder`, else the benchmark."""
    names = [str(run.options.get("benchmark.name", "")) for run in runs]
    roots = [Path(str(run.options.get("benchmark.root", ""))).parts for run in runs]
    return [
        escape(short_path(root, roots)) if root and name == "image_folder" else name
        for name, root in zip(names, roots, strict=True)
    ]


def short_path(path: tuple[str, ...], others: Sequence[tuple[str, ...]]) -> str:
    """As many of the last folders of a path as distinguish it from the others; a split with its parent.

    >>> paths = [("data", "mnist", "train"), ("data", "few", "mnist", "train"), ("data", "cats")]
    >>> [short_path(path, paths) for path in paths]
    ['data/mnist/train', 'few/mnist/train', 'cats']
    """
    count = 2 if path[-1] in SPLITS else 1
    while count < len(path) and any(other != path and other[-count:] == path[-count:] for other in others):
        count += 1
    return Path(*path[-count:]).as_posix()


def data_set_text(run: RunRecord, name: str) -> str:
    """Name and size, as far as they are recorded."""
    shape, names, tasks = run.stream.get("image_shape"), class_names(run), class_tasks(run)
    parts = [pluralise(len(names), "class", "classes")] if names else []
    parts += [pluralise(len(tasks), "task")] if tasks else []
    for side in ("train", "test"):
        sizes = run.stream.get(f"{side}_sizes")
        if isinstance(sizes, list) and all(map(is_whole, sizes)):
            parts.append(f"{pluralise(sum(sizes), 'image')} for {side}ing")
    if isinstance(shape, list) and len(shape) == 3:
        parts.append(f"{shape[2]} by {shape[1]} pixels")
    return f"{name}: {', '.join(parts)}"


def class_names(run: RunRecord) -> list[str]:
    names = run.stream.get("class_names")
    return [escape(name) for name in names] if isinstance(names, list) else []


def class_tasks(run: RunRecord) -> list[list[int]]:
    """Class numbers by task; empty if they are not recorded."""
    tasks, num_classes = run.stream.get("tasks"), len(class_names(run))
    if not isinstance(tasks, list) or not all(isinstance(task, list) and task for task in tasks):
        return []
    known = all(is_whole(number) and 0 <= number < num_classes for task in tasks for number in task)
    return tasks if known and (run.accuracy is None or len(tasks) == len(run.accuracy)) else []


def chance(run: RunRecord) -> float | None:
    """The accuracy of random guessing, in percent: among the classes of the task if task-aware, else among all."""
    tasks = class_tasks(run)
    if is_task_aware(run):
        return fmean(100 / len(task) for task in tasks) if tasks else None
    return 100 / len({number for task in tasks for number in task}) if tasks else None


def is_task_aware(run: RunRecord) -> bool:
    return run.options.get("protocol") == "task_aware"
