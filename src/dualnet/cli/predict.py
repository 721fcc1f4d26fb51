"""`dualnet predict`: predict the classes of images."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dualnet import atomic
from dualnet.cli.terminal import print_line, show_warning
from dualnet.data.decode import UnreadableError
from dualnet.data.inputs import list_images
from dualnet.models.model import UNKNOWN_SHARE, Model, load
from dualnet.models.predictions import Prediction

STDOUT = Path("-")  # as the file of a table: it is printed, and nothing else


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    if arguments.csv:
        check_table(arguments.csv, arguments.json)
    model = load(arguments.run, trust=arguments.trust)
    check_has_tasks(model, arguments.task)
    if arguments.unknown is not None:
        model.check_keeps_examples("--unknown")
    unknown = UNKNOWN_SHARE if arguments.unknown is None else arguments.unknown
    images = list_images(arguments.images)
    predictions = model.predict(images, arguments.task, arguments.top, arguments.on_error, unknown)
    pairs = list(zip(images, (refused(each, arguments.threshold) for each in predictions), strict=True))
    if errors := {image: prediction.error for image, prediction in pairs if prediction.error}:
        unreadable = UnreadableError(errors, len(images)).summary(len(images))
        if len(errors) == len(images):
            raise ValueError(f"{unreadable}; there is nothing to predict")
        show_warning(f"{unreadable}; skipped")
    warn_without_task(model, arguments.task)
    if arguments.csv != STDOUT:
        for image, prediction in pairs:
            show(image, prediction, arguments.json)
    if arguments.csv:
        sys.stdout.flush()  # the table may go there too
        write_csv(arguments.csv, pairs)


def refused(prediction: Prediction, threshold: float) -> Prediction:
    """Unknown also if the probability is below the threshold."""
    is_unknown = prediction.unknown or (not prediction.error and prediction.probability < threshold)
    return replace(prediction, unknown=is_unknown)


def show(image: str, prediction: Prediction, as_json: bool) -> None:
    pairs = list(zip(prediction.classes, prediction.probabilities, strict=True))
    if as_json:
        error = {"error": prediction.error} if prediction.error else {}
        classes = [{"name": name, "probability": probability} for name, probability in pairs]
        print(json.dumps({"image": image, "unknown": prediction.unknown, "classes": classes, **error}))
    elif not prediction.error:
        classes = ", ".join(f"{name} {100 * probability:.1f} %" for name, probability in pairs)
        print_line(f"{image}: {f'unknown ({classes})' if prediction.unknown else classes}")


def check_has_tasks(model: Model, task: int | None) -> None:
    """Raises ValueError if a task is given and there is only one, also for 0, which Python callers may give."""
    if task is not None and model.learner.spec.num_tasks == 1:
        raise ValueError(f"task: {task} is given, but the model has no tasks to choose from; leave it out")


def warn_without_task(model: Model, task: int | None) -> None:
    num_tasks = model.learner.spec.num_tasks
    if task is None and num_tasks > 1:
        show_warning(
            "this model was trained task-aware and is far less accurate without the task; give --task "
            f"(0 to {num_tasks - 1}), or train with the protocol task_free_boundaries"
        )


def check_table(file: Path, as_json: bool) -> None:
    """Raises ValueError if the table is not wanted, before any image is predicted."""
    if file == STDOUT and as_json:
        raise ValueError("--csv -: prints the table instead of JSON; leave one of them out, or give --csv a file")
    if file.is_dir():
        raise ValueError(f"{file}: is a folder; give --csv a file, such as {file / 'table.csv'}")


def write_csv(file: Path, predictions: Sequence[tuple[str, Prediction]]) -> None:
    """Write one row per image: its path, whether it is unknown, classes with probabilities, why it is unreadable."""
    most = max(len(prediction.classes) for _, prediction in predictions)
    columns = [f"{what}_{n}" for n in range(1, most + 1) for what in ("class", "probability")]
    rows: list[list[Any]] = [["image", "unknown", *columns, "error"]]
    for image, prediction in predictions:
        pairs = zip(prediction.classes, prediction.probabilities, strict=True)
        cells = [value for pair in pairs for value in pair]
        rows.append([image, json.dumps(prediction.unknown), *(cells or [""] * len(columns)), prediction.error])
    write_table(file, rows)


def write_table(file: Path, rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n" if file == STDOUT else "\r\n").writerows(rows)
    content = text.getvalue().encode(errors="backslashreplace")  # names of files may not be UTF-8
    if file == STDOUT:
        print(content.decode(), end="")
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(file, content)
