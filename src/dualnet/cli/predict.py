"""`dualnet predict`: predict the classes of images."""

import argparse
import csv
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dualnet import atomic
from dualnet.cli.terminal import print_line, show_warning
from dualnet.data.decode import UnreadableError
from dualnet.data.inputs import list_images
from dualnet.runs.model import Prediction, load


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    if arguments.csv:
        check_table(arguments.csv)
    model = load(arguments.run, trust=arguments.trust)
    images = list_images(arguments.images)
    predictions = model.predict(images, arguments.task, arguments.top, arguments.on_error)
    if errors := {image: one.error for image, one in zip(images, predictions, strict=True) if one.error}:
        unreadable = UnreadableError(errors, len(images))
        if len(errors) == len(images):
            raise unreadable
        show_warning(f"{unreadable.summary(len(images))}; skipped")
    num_tasks = model.learner.spec.num_tasks
    if arguments.task is None and num_tasks > 1:
        show_warning(
            "this model was trained task-aware and is far less accurate without the task; give --task "
            f"(0 to {num_tasks - 1}), or train with the protocol task_free_boundaries"
        )
    for image, prediction in zip(images, predictions, strict=True):
        pairs = list(zip(prediction.classes, prediction.probabilities, strict=True))
        if arguments.json:
            error = {"error": prediction.error} if prediction.error else {}
            print(json.dumps({"image": image, "classes": [{"name": n, "probability": p} for n, p in pairs], **error}))
        elif not prediction.error:
            print_line(f"{image}: " + ", ".join(f"{name} {100 * probability:.1f} %" for name, probability in pairs))
    if arguments.csv:
        sys.stdout.flush()  # the table may go there too
        write_csv(arguments.csv, images, predictions)


def check_table(file: Path) -> None:
    """Raises ValueError if the table cannot be written, before any image is predicted."""
    if file.is_dir():
        raise ValueError(f"{file}: is a folder; give --csv a file, such as {file / 'table.csv'}")
    if atomic.is_stream(file):
        return
    folder = next(folder for folder in file.absolute().parents if folder.exists())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"{file}: cannot be written ({error.strerror}); give --csv another file") from error


def write_csv(file: Path, images: Sequence[str], predictions: Sequence[Prediction]) -> None:
    """Write one row per image: its path, classes with probabilities, and why it could not be read, if so."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    most = max(len(prediction.classes) for prediction in predictions)
    columns = [f"{what}_{n}" for n in range(1, most + 1) for what in ("class", "probability")]
    writer.writerow(["image", *columns, "error"])
    for image, one in zip(images, predictions, strict=True):
        pairs = zip(one.classes, one.probabilities, strict=True)
        cells = [value for pair in pairs for value in pair]
        writer.writerow([image, *(cells or [""] * len(columns)), one.error])
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(file, text.getvalue().encode(errors="backslashreplace"))  # names of files may not be UTF-8
