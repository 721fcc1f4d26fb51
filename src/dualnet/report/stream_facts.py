"""What a run says of its stream: the data set and its size, the classes of each task, the accuracy of guessing."""

from pathlib import Path
from statistics import fmean

from dualnet.experiments.record import RunRecord
from dualnet.options import is_whole
from dualnet.text import escape, pluralise

SPLITS = ("train", "training", "val", "test")  # folders named after a part of a data set


def data_set_name(run: RunRecord) -> str:
    """The benchmark; for `image_folder` the last folder of its path, of a split with its parent."""
    name, root = (str(run.options.get(f"benchmark.{option}") or "") for option in ("name", "root"))
    if name != "image_folder" or not root:
        return name
    parts = Path(root).parts
    return escape(Path(*parts[-2 if parts[-1] in SPLITS else -1 :]).as_posix())


def data_set_text(run: RunRecord) -> str:
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
    return f"{data_set_name(run)}: {', '.join(parts)}"


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
