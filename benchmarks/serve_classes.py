"""Teaches five classes over HTTP, then five more: forgetting of the first five, and time until answers change.

    python -m benchmarks.serve_classes FOLDER [--images 10] [--test-images 40] [--practice 60]

FOLDER holds train/CLASS/*.png and test/CLASS/*.png with ten classes. Three services are compared: one with its
defaults; one that is taught all ten classes at once and cannot forget, which shows how much harder ten classes are than
five; and one that fine-tunes without a memory and without background learning. Images are sent one at a time,
alternating between the classes, each after the last one changed the answers; the time is from the start of the upload
to the end of the first prediction by a version that has learned it. After each five classes the background, if there is
one, makes `--practice` steps, so that the result does not depend on the speed of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.service import Service, served
from dualnet.learners.presets import LIVE
from dualnet.models.model import Model
from dualnet.serve.options import DEFAULT_IMAGE_SIZE

FINETUNE = {
    "name": "finetune",
    "ema_rate": 0.02,
    "lr": 0.03,
    **{key: LIVE[key] for key in ("encoder", "updates")},
}
HALF = 5  # classes


def images(folder: Path, part: str, name: str, count: int) -> list[bytes]:
    return [file.read_bytes() for file in sorted((folder / part / name).iterdir())[:count]]


def teach(service: Service, folder: Path, classes: Sequence[str], count: int) -> list[float]:
    """Teach some classes. Returns the seconds from each upload to an answer that includes it."""
    seconds = []
    by_class = {name: images(folder, "train", name, count) for name in classes}
    for number in range(count):
        for name in classes:
            began = time.monotonic()
            service.teach([by_class[name][number]], [name])
            service.wait_until_learned()
            service.names([by_class[name][number]])
            seconds.append(time.monotonic() - began)
    return seconds


def practise(service: Service, steps: int) -> None:
    end = service.steps() + steps
    while (now := service.status()["background"])["steps"] < end and now["activity"] == "learning":
        time.sleep(0.1)


def accuracy(service: Service, folder: Path, classes: Sequence[str], count: int) -> float:
    """The mean over the classes, in percent."""
    answers = [service.names(images(folder, "test", name, count)) for name in classes]
    return 100 * statistics.fmean(some.count(name) / len(some) for name, some in zip(classes, answers, strict=True))


def measure(arguments: argparse.Namespace, title: str, *options: object, at_once: bool = False) -> None:
    folder, most = arguments.folder, arguments.test_images
    names = sorted(path.name for path in (folder / "train").iterdir())
    first, second = names[:HALF], names[HALF : 2 * HALF]
    seconds, accuracies = [], []  # accuracy on the first five, after each part
    with served(*options) as service:
        for classes in [first + second] if at_once else [first, second]:
            seconds += teach(service, folder, classes, arguments.images)
            practise(service, arguments.practice * len(classes) // HALF)
            accuracies.append(accuracy(service, folder, first, most))
        new, steps = accuracy(service, folder, second, most), service.steps()
    before, change = ("—", "—") if at_once else (f"{accuracies[0]:.1f}", f"{accuracies[1] - accuracies[0]:+.1f}")
    answer = f"{1000 * statistics.median(seconds):.0f} ms, worst {1000 * max(seconds):.0f} ms"
    figures = f"{before} | {accuracies[-1]:.1f} | {change} | {new:.1f} | {answer} | {steps}"
    print(f"| {folder.name} | {title} | {figures} |", flush=True)


def main(arguments: argparse.Namespace) -> None:
    print(
        "| images | learner | first five before | after | change | second five | changed answer after, median | steps |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    measure(arguments, "service")
    measure(arguments, "service, all at once", at_once=True)
    with tempfile.TemporaryDirectory() as folder:
        Model.create(image_size=DEFAULT_IMAGE_SIZE, learner=FINETUNE).save(Path(folder) / "model")
        measure(arguments, "fine-tuning", "--model", Path(folder) / "model")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.serve_classes", description=__doc__)
    made.add_argument("folder", type=Path, help="with train/CLASS/*.png and test/CLASS/*.png")
    made.add_argument("--images", type=int, default=10, help="training images per class (default: 10)")
    made.add_argument("--test-images", type=int, default=40, help="test images per class (default: 40)")
    made.add_argument("--practice", type=int, default=60, help="background steps after each five classes (default: 60)")
    return made


if __name__ == "__main__":
    main(parser().parse_args())
