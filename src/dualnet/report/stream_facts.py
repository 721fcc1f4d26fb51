"""What a run says of its stream: the data set and its size, the classes of each task, the accuracy of guessing."""

import math
from pathlib import Path
from statistics import fmean

from dualnet.experiments.record import RunRecord
from dualnet.options import BY_SEED, is_whole
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


PROTOCOLS = {
    "task_aware": "the task is known",
    "task_free": "the task is not known",
    "task_free_boundaries": "the task is not known, but its end",
}


def setting_parts(run: RunRecord) -> list[str]:
    """What a finished run learned, in words: data set, tasks, protocol, class order, labels, boundaries."""
    names, order, protocol = class_names(run), run.options.get("benchmark.order_seed"), run.options.get("protocol")
    tasks = pluralise(0 if run.accuracy is None else len(run.accuracy), "task")
    orders = {None: "", BY_SEED: "a class order for each seed"}
    parts = [
        data_set_name(run),
        f"{pluralise(len(names), 'class', 'classes')} in {tasks}" if names else tasks,
        PROTOCOLS.get(str(protocol), str(protocol)),
        orders.get(order, f"class order {order}"),
        labels_text(run),
        boundaries_text(run),
    ]
    return [part for part in parts if part]


def labels_text(run: RunRecord) -> str:
    """Which images have a label, and how late it comes."""
    share, delay, spread = (_number(run, f"labels.{name}") for name in ("share", "delay", "delay_spread"))
    text = "all labels"
    if share is not None and 0 < share < 1:
        one, all_of_them = (
            ("batch", "batches") if run.options.get("labels.drawn_per") == "batch" else ("image", "images")
        )
        whole = math.isclose(1 / share, round(1 / share))
        text = (
            f"labels for 1 {one} in {1 / share:.0f}"
            if whole
            else f"labels for {100 * share:.4g} % of the {all_of_them}"
        )
    if delay or spread:
        last = f" to {(delay or 0) + spread:.0f}" if spread else ""
        text += f", {delay or 0:.0f}{last} batches late"
    return text


def boundaries_text(run: RunRecord) -> str:
    """Which images come during other tasks; empty if none do."""
    share, disjoint = (_number(run, f"blurry.{name}") for name in ("share", "disjoint"))
    but = f", but none of {100 * disjoint:.4g} % of its classes" if disjoint else ""
    return f"{100 * share:.4g} % of the images of a task come during others{but}" if share else ""


def _number(run: RunRecord, option: str) -> float | None:
    value = run.options.get(option)
    return value if isinstance(value, int | float) else None


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
