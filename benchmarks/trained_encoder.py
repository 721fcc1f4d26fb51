"""Whether training the encoder further beats freezing it, by labelled and unlabelled images per class.

    python -m benchmarks.trained_encoder FOLDER [--labelled 5,20,100,350] [--unlabelled 0,4,20] [--draws 0]

FOLDER has train/CLASS/* and test/CLASS/*. In each draw some classes have labelled images; the unlabelled ones, so many
per labelled one, are other images of these classes, then of the rest. From the starter, the encoder is trained by SGD
on random views of the labelled images (labels), by Barlow Twins on those of all images (self), or by the sum of both
losses, and the closed-form head learns the labelled images; `best` is the preset of this name, from the starter, with
its own head. Printed are the draw, labelled images per class, unlabelled ones per labelled one and their number, the
objective, the rate, the accuracy in percent with the frozen encoder and with the trained one, the difference, and the
seconds of processor time of the training.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.unknown import drawn
from dualnet import Batch, Model
from dualnet.batch import UNLABELLED, StreamSpec
from dualnet.data.image_folder import ImageFiles, read_files
from dualnet.learners import DualNet
from dualnet.losses import label_loss
from dualnet.nets import BaseEncoder, Head
from dualnet.objectives import BarlowTwins, Objective
from dualnet.objectives.objective import embed

SIZE = 64  # pixels
PASS = 100  # images
BATCH = 16  # of all images and, beside them, of labelled ones
STEPS = {5: 60, 20: 120, 100: 400, 350: 600}  # by labelled images per class
SELF = 0.01  # weight of the self-supervised loss, which is a sum over pairs of features
OBJECTIVES = ("labels", "self", "both", "best")
BEST = {"name": "dualnet", "preset": "best", "encoder": {"width": 32, "weights": "starter"}}


@dataclass(frozen=True)
class Terms:
    """Which losses there are."""

    labels: bool = True
    twins: bool = True


class Both(Objective):
    """The sum of the losses by labels and, weighted, by Barlow Twins; or one of them."""

    Config = Terms

    def __init__(self, num_features: int, spec: StreamSpec, config: Any = None) -> None:
        super().__init__(num_features, spec, config)
        self.head = Head(num_features, spec.num_classes)
        self.twins = BarlowTwins(num_features, spec)

    def forward(self, encoder: BaseEncoder, view_a: Tensor, view_b: Tensor, batch: Batch) -> Tensor:
        def outputs(features: Tensor, parts: int) -> Tensor:
            return torch.cat([self.head(features), self.twins.projector(features, parts)], dim=1)

        assert batch.labels is not None
        z_a, z_b = embed(encoder, outputs, view_a, view_b)
        classes = self.head.weight.shape[0]
        logits = torch.cat([z_a[:, :classes], z_b[:, :classes]])
        by_labels = self.config.labels * label_loss(logits, batch.labels.repeat(2))
        return by_labels + self.config.twins * SELF * self.twins.loss(z_a[:, classes:], z_b[:, classes:])


def pixels(files: ImageFiles, rows: np.ndarray) -> Tensor:
    return torch.from_numpy(files.decoded[rows])


def learner(objective: str, lr: float, labelled: int) -> dict[str, Any]:
    terms = {"labels": objective != "self", "twins": objective != "labels"}
    slow: dict[str, Any] = {"objective": "benchmarks.trained_encoder.Both", "objective_options": terms}
    slow |= {"optimizer": "sgd", "rounds": 1, "inner_steps": 1, "lr": lr, "momentum": 0.9}
    slow |= {"batch_size": BATCH, "source": "memory_and_batch", "statistics": "keep"}
    views = {"crop_area": (0.2, 1.0), "normalisation": "imagenet"}
    encoder = {"width": 32, "weights": "starter"}
    memory = {"slots": labelled}
    return {"name": "dualnet", "head": "lda", "encoder": encoder, "slow": slow, "views": views, "memory": memory}


def train(model: Model, images: Tensor, labels: Tensor, steps: int, random: np.random.Generator) -> None:
    """Slow steps on random images, with a learning rate that falls like a cosine."""
    net = model.learner
    assert isinstance(net, DualNet)
    [group] = net.slow_optimizer.param_groups
    most = group["lr"]
    for step in range(steps):
        group["lr"] = most * (1 + np.cos(np.pi * step / steps)) / 2
        rows = torch.from_numpy(random.choice(len(images), BATCH, replace=len(images) < BATCH))
        net.learn_slow(Batch(images[rows], labels[rows], torch.zeros_like(labels[rows])))


def accuracy(model: Model, images: Tensor, labels: Tensor) -> float:
    answers = torch.cat([model.learner.predict(part) for part in images.split(PASS)])
    return 100 * (answers == labels).double().mean().item()


def numbers(files: ImageFiles, rows: np.ndarray, classes: list[str]) -> Tensor:
    return torch.tensor([classes.index(files.names[row]) for row in rows])  # pyright: ignore[reportArgumentType]


def measure(folder: Path, options: argparse.Namespace, draw: int) -> None:
    random = np.random.default_rng(draw)
    train_files, test_files = (read_files(str(folder / part), None, SIZE, "stop") for part in ("train", "test"))
    classes = random.permutation(train_files.classes).tolist()[: options.classes]
    test_rows = drawn(test_files, classes, len(test_files), random)
    test = pixels(test_files, test_rows), numbers(test_files, test_rows, classes)
    is_known = np.isin(train_files.names, classes)  # pyright: ignore[reportArgumentType]
    for count in options.labelled:
        rows = drawn(train_files, classes, count, random)
        images, labels = pixels(train_files, rows), numbers(train_files, rows, classes)
        frozen = Model.create(classes, image_size=SIZE)
        frozen.learn(images, [classes[label] for label in labels])
        base = accuracy(frozen, *test)
        others = np.setdiff1d(np.arange(len(train_files)), rows)
        others = np.concatenate([random.permutation(others[is_known[others] == known]) for known in (True, False)])
        for share in options.unlabelled:
            more = others[: share * len(rows)]
            every = torch.cat([images, pixels(train_files, more)])
            given = torch.cat([labels, torch.full((len(more),), UNLABELLED)])
            for name in [name for name in options.objectives if (name == "labels") == (share == 0) or name == "best"]:
                began = time.process_time()
                if name == "best":
                    model = Model.create(classes, image_size=SIZE, learner=BEST, seed=draw, label_share=1 / (1 + share))
                    order = torch.from_numpy(random.permutation(len(every)))
                    names = [None if number < 0 else classes[number] for number in given[order]]
                    model.learn(every[order], names)
                else:
                    options_of = learner(name, options.lr, len(rows))
                    model = Model.create(classes, image_size=SIZE, learner=options_of, seed=draw)
                    tasks = torch.zeros_like(labels)
                    model.learner.memory.add(Batch(images, labels, tasks), model.learner.generator)  # pyright: ignore
                    train(model, every, given, STEPS[count], random)
                    model.learner.refit()
                seconds, trained = time.process_time() - began, accuracy(model, *test)
                cells = (draw, count, share, len(more), name, options.lr, base, trained, trained - base, seconds)
                print(" | ".join(f"{cell:.1f}" if cell in cells[6:] else str(cell) for cell in cells), flush=True)


def whole_numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.trained_encoder", description=__doc__)
    made.add_argument("folder", type=Path, metavar="FOLDER")
    made.add_argument("--labelled", type=whole_numbers, default=[5, 20, 100, 350], help="images per class")
    made.add_argument("--unlabelled", type=whole_numbers, default=[0, 4, 20], help="images per labelled one")
    made.add_argument("--objectives", type=lambda text: text.split(","), default=[*OBJECTIVES])
    made.add_argument("--classes", type=int, default=10)
    made.add_argument("--draws", type=whole_numbers, default=[0], help="seeds")
    made.add_argument("--lr", type=float, default=3e-3, help="at the start (default: 0.003)")
    return made


if __name__ == "__main__":
    parsed = parser().parse_args()
    for number in parsed.draws:
        measure(parsed.folder, parsed, number)
