"""Whether images of other classes are told from those of learned ones, and whether probabilities are shares.

    python -m benchmarks.unknown FOLDER... [--encoder starter] [--image-size 64] [--images 20] [--draws 5]

A FOLDER has train/CLASS/* and test/CLASS/*. In each draw half of the classes are learned, and the test images of all
classes are predicted: the area under the ROC curve, by the novelty and by the maximum probability, and the share of the
images of known and of other classes that are `unknown`. Then all classes are learned: the accuracy, and the expected
calibration error in 15 bins. Means and standard deviations over the draws, in percent.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualnet import Model
from dualnet.data.image_folder import ImageFiles, read_files
from dualnet.learners.make_encoder import encoder_options
from dualnet.models.model import NEW_MODEL, UNKNOWN_SHARE

BINS = 15
HEAD = (
    "images",
    "ROC by novelty",
    "by probability",
    "known refused",
    "others refused",
    "accuracy",
    "calibration error",
)


def area(known: Tensor, other: Tensor) -> float:
    """Under the ROC curve: how often one of another class has the larger score than a known one; a tie counts half."""
    difference = other[:, None] - known
    return ((difference > 0).double() + (difference == 0).double() / 2).mean().item()


def calibration_error(probabilities: Tensor, is_right: Tensor) -> float:
    """The mean difference between probability and accuracy in equal intervals, weighted by their images."""
    bins = (probabilities * BINS).long().clamp(max=BINS - 1)
    differences = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, probabilities.double() - is_right.double())
    return differences.abs().sum().item() / len(bins)


def taught(learner: Mapping[str, Any], size: int, files: ImageFiles, classes: Sequence[str], rows: np.ndarray) -> Model:
    model = Model.create(classes, image_size=size, learner=learner)
    model.learn(torch.from_numpy(files.decoded[rows]), [files.names[row] for row in rows])
    return model


def drawn(files: ImageFiles, classes: Sequence[str], count: int, random: np.random.Generator) -> np.ndarray:
    names = np.array(files.names)
    rows = [random.permutation(np.flatnonzero(names == name))[:count] for name in classes]
    return random.permutation(np.concatenate(rows))


def measure(folder: Path, arguments: argparse.Namespace, draw: int) -> list[float]:
    size, random = arguments.image_size, np.random.default_rng(draw)
    learner = {**NEW_MODEL, "encoder": encoder_options(arguments.encoder)}
    train, test = (read_files(str(folder / part), None, size, "stop") for part in ("train", "test"))
    pixels, names = torch.from_numpy(test.decoded[np.arange(len(test))]), np.array(test.names)
    classes = random.permutation(train.classes).tolist()
    half = classes[: len(classes) // 2]
    model = taught(learner, size, train, half, drawn(train, half, arguments.images, random))
    probabilities, novelty = model.outputs(pixels)
    known, least = torch.from_numpy(np.isin(names, half)), -probabilities.amax(dim=1)
    areas = [area(score[known], score[~known]) for score in (novelty, least)]
    is_unknown = (novelty > model.threshold(UNKNOWN_SHARE)).double()
    refused = [is_unknown[known].mean().item(), is_unknown[~known].mean().item()]
    model = taught(learner, size, train, classes, drawn(train, classes, arguments.images, random))
    probability, number = model.probabilities(pixels).max(dim=1)
    is_right = torch.from_numpy(np.array(classes)[number.numpy()] == names)
    figures = [*areas, *refused, is_right.double().mean().item(), calibration_error(probability, is_right)]
    return [100 * figure for figure in figures]


def main(arguments: argparse.Namespace) -> None:
    print("| " + " | ".join(HEAD) + " |\n| --- |" + " ---: |" * (len(HEAD) - 1), flush=True)
    for folder in arguments.folders:
        rows = np.array([measure(folder, arguments, draw) for draw in range(arguments.draws)])
        cells = [
            f"{mean:.1f} ± {std:.1f}" for mean, std in zip(rows.mean(axis=0), rows.std(axis=0, ddof=1), strict=True)
        ]
        print(f"| {' | '.join([folder.name, *cells])} |", flush=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.unknown", description=__doc__)
    made.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    made.add_argument("--encoder", default="starter", help="starter (default), lite0, timm/MODEL or a file")
    made.add_argument("--image-size", type=int, default=64, help="in pixels (default: 64)")
    made.add_argument("--images", type=int, default=20, help="training images per class (default: 20)")
    made.add_argument("--draws", type=int, default=5, help="of classes and images (default: 5)")
    return made


if __name__ == "__main__":
    main(parser().parse_args())
