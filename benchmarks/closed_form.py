"""Whether the closed-form head keeps what is said of it: `python -m benchmarks.closed_form FOLDER [--images 10000]`.

FOLDER has train/CLASS/* and test/CLASS/*, with ten classes or more; the first ten are used, except for the time of
10,000 images. The starter and all defaults; what is said of solving is for random features.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.serve_classes import teach
from benchmarks.service import served
from dualnet import Model
from dualnet.data.image_folder import read_files
from dualnet.models.model import UNKNOWN_SHARE
from dualnet.models.onnx import export
from dualnet.nets.closed_form import ClosedForm

SIZE = 64  # pixels
CLASSES, IMAGES, TESTED = 10, 20, 20
ORDERS = 20
FEATURES, MANY_CLASSES = 1000, (1000, 10_000)


def read(folder: Path, part: str, count: int) -> tuple[Tensor, list[str]]:
    files = read_files(str(folder / part), None, SIZE, "stop")
    names = np.array(files.names)
    rows = np.concatenate([np.flatnonzero(names == name)[:count] for name in files.classes[:CLASSES]])
    return torch.from_numpy(files.decoded[rows]), names[rows].tolist()


def taught(images: Tensor, names: list[str], order: np.ndarray, sessions: int) -> Model:
    model = Model.create(sorted(set(names)), image_size=SIZE)
    for rows in np.array_split(order, sessions):
        model.learn(images[torch.from_numpy(rows)], [names[row] for row in rows])
    return model


def orders(images: Tensor, names: list[str], test: Tensor) -> Iterator[str]:
    random = np.random.default_rng(0)
    once, was_unknown = answers(taught(images, names, np.arange(len(names)), 1), test)
    worst, changed = 0.0, 0
    for _ in range(ORDERS):
        model = taught(images, names, random.permutation(len(names)), int(random.integers(1, len(names))))
        probabilities, is_unknown = answers(model, test)
        worst = max(worst, (probabilities - once).abs().max().item())
        other = (probabilities.argmax(dim=1) != once.argmax(dim=1)) | (is_unknown != was_unknown)
        changed += int(other.sum())
    yield f"{ORDERS} orders and divisions of {len(names)} images: {changed} of {len(test)} predictions changed"
    yield f"  largest difference of a probability: {worst:.1e}"


def answers(model: Model, images: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, and whether the images are unknown."""
    probabilities, novelty = model.outputs(images)
    return probabilities, novelty > model.threshold(UNKNOWN_SHARE)


def onnx(model: Model, test: Tensor) -> Iterator[str]:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        export(model, Path(folder) / "model.onnx")
        session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
    probabilities, unknown, _ = session.run(None, {"images": test.numpy()})
    expected, is_unknown = answers(model, test)
    other = (torch.from_numpy(unknown) != is_unknown).sum()
    worst = (torch.from_numpy(probabilities) - expected).abs().max()
    yield f"ONNX: largest difference of a probability {worst:.1e}; `unknown` differs for {other} of {len(test)} images"


def solving() -> Iterator[str]:
    for classes in MANY_CLASSES:
        random, head, seconds = torch.Generator().manual_seed(0), ClosedForm(FEATURES, classes), []
        rows = torch.randn(5 * classes, FEATURES, generator=random).half()
        for part, labels in zip(rows.split(100), (torch.arange(len(rows)) % classes).split(100), strict=True):
            head.add(part, labels)
        for row in rows[:20]:
            began = time.perf_counter(), time.process_time()
            head.add(row[None], torch.tensor([3]))
            head.logits(row[None])
            seconds.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        elapsed, used = (1000 * statistics.median(part) for part in zip(*seconds, strict=True))
        what = f"one more example and its prediction, {FEATURES} features, {classes} classes"
        yield f"{what}: {elapsed:.0f} ms, {used:.0f} ms of processor time (medians)"


def changed_answers(folder: Path) -> Iterator[str]:
    names = sorted(path.name for path in (folder / "train").iterdir())[:CLASSES]
    with served() as service:
        seconds = teach(service, folder, names, 10)
    median, worst = 1000 * statistics.median(seconds), 1000 * max(seconds)
    yield f"service, from an upload to a prediction by a model that has learned it: {median:.0f} ms (worst {worst:.0f})"


def sessions(folder: Path, count: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as scratch:
        files = sorted((folder / "train").rglob("*.*"))[: count + 10]
        parts = [Path(scratch, "many"), Path(scratch, "few")]
        for number, file in enumerate(files):
            place = parts[number >= count] / file.parent.name / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.open(file).convert("RGB").resize((SIZE, SIZE)).save(place)
        model = Path(scratch, "model")
        first = [[parts[0], "--out", model], f"{min(count, len(files)):,} images of {SIZE} px learned"]
        second = [[model, parts[1], "--out", model], f"a session with {len(files) - count} images, in all"]
        for words, what in (first, second):
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            command = [sys.executable, "-m", "dualnet", "learn", *map(str, words)]
            subprocess.run(command, check=True, capture_output=True)
            after, elapsed = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            yield f"{what}: {elapsed:.1f} s, {used:.1f} s of processor time"


def main(arguments: argparse.Namespace) -> None:
    images, names = read(arguments.folder, "train", IMAGES)
    test, _ = read(arguments.folder, "test", TESTED)
    model = taught(images, names, np.arange(len(names)), 1)
    parts = (
        orders(images, names, test),
        onnx(model, test),
        solving(),
        changed_answers(arguments.folder),
        sessions(arguments.folder, arguments.images),
    )
    for part in parts:
        for line in part:
            print(line, flush=True)


if __name__ == "__main__":
    made = argparse.ArgumentParser("python -m benchmarks.closed_form", description=__doc__)
    made.add_argument("folder", type=Path, metavar="FOLDER")
    made.add_argument("--images", type=int, default=10_000)
    main(made.parse_args())
