"""Accuracy against the number of labels: images that `suggest` chooses against random ones.

    python -m benchmarks.suggestions FOLDER... [--pool 50] [--start 2] [--step 10] [--labels 200] [--draws 5]
        [--picture docs/suggestions.svg]

A FOLDER has train/CLASS/* and test/CLASS/*. In each draw the pool has some random training images of each class, whose
first ones are labelled; in every round some more are, and the head is solved anew. The last columns are the labels with
which suggestions first reach the best accuracy so far of random ones at the end (all of them if they do not), and the
difference of the mean accuracies of all rounds; both with half of the 95 % confidence interval over the draws.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dualnet import Model
from dualnet.data.image_folder import read_files
from dualnet.models.suggestions import most_instructive
from dualnet.nets.closed_form import ClosedForm
from dualnet.report import style
from dualnet.ttest import two_sided_t

Choose = Callable[[ClosedForm, Tensor, Tensor, int], list[int]]
PASS = 16  # images


def features_of(model: Model, folder: Path) -> tuple[Tensor, Tensor]:
    """Features and class numbers of the images in a folder: float16 [N, features], int64 [N]."""
    files = read_files(str(folder), None, model.learner.spec.image_shape[1], "stop")
    number_of = {name: number for number, name in enumerate(files.classes)}
    parts = np.array_split(np.arange(len(files)), math.ceil(len(files) / PASS))
    features = [model.learner.features(torch.from_numpy(files.decoded[rows])) for rows in parts]
    return torch.cat(features), torch.tensor([number_of[str(name)] for name in files.names])


def curve(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], choose: Choose, options: argparse.Namespace
) -> np.ndarray:
    """The accuracy in percent at each number of labels. The first images of each class are labelled at the start."""
    (pool, labels), accuracies = train, []
    of_class = [(labels == number).nonzero().flatten() for number in labels.unique()]
    labelled = torch.cat([rows[: options.start] for rows in of_class])
    while True:
        head = ClosedForm(pool.shape[1], len(of_class))
        head.add(pool[labelled], labels[labelled])
        head.calibrate(pool[labelled], labels[labelled])
        accuracies.append(100 * (head.logits(test[0]).argmax(dim=1) == test[1]).double().mean().item())
        if len(labelled) + options.step > options.labels:
            return np.array(accuracies)
        rest = torch.ones(len(pool), dtype=torch.bool).index_fill(0, labelled, False).nonzero().flatten()
        labelled = torch.cat([labelled, rest[choose(head, pool[labelled], pool[rest], options.step)]])


def compare(folder: Path, model: Model, options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """The curves of random and of suggested images: [draws, rounds]."""
    train, test = (features_of(model, folder / part) for part in ("train", "test"))
    curves: list[list[np.ndarray]] = [[], []]
    for draw in range(options.draws):
        random = torch.Generator().manual_seed(draw)
        order = torch.randperm(len(train[1]), generator=random)
        rows = [order[train[1][order] == number][: options.pool] for number in train[1].unique()]
        pool = torch.cat(rows)
        drawn = train[0][pool], train[1][pool]

        def at_random(_: ClosedForm, __: Tensor, candidates: Tensor, count: int, random=random) -> list[int]:
            return torch.randperm(len(candidates), generator=random)[:count].tolist()

        for some, choose in zip(curves, (at_random, most_instructive), strict=True):
            some.append(curve(drawn, test, choose, options))
    return np.array(curves[0]), np.array(curves[1])


def labels_needed(random: np.ndarray, suggested: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of each draw."""
    reached = np.maximum.accumulate(suggested, axis=1) >= random.max(axis=1, keepdims=True)
    return np.where(reached.any(axis=1), labels[reached.argmax(axis=1)], labels[-1])


def interval(values: np.ndarray) -> str:
    half = two_sided_t(0.05, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return f"{values.mean():.1f} ± {half:.1f}"


def picture(results: Mapping[str, tuple[np.ndarray, np.ndarray]], options: argparse.Namespace) -> bytes:
    """The curves of each folder, with bands of the standard deviation over the draws."""
    with style.styled(style.PICTURE_THEME, svg_text="path", salt="picture") as figure:
        figure.set_size_inches(2.4 * len(results), 2.6)
        plots = figure.subplots(1, len(results), squeeze=False)[0]
        for axes, (name, curves) in zip(plots, results.items(), strict=True):
            for index, (values, title) in enumerate(zip(curves, ("random", "suggested"), strict=True)):
                labels, mean, half = labels_of(values, options), values.mean(axis=0), values.std(axis=0, ddof=1)
                axes.plot(labels, mean, color=style.PALETTE[index], linewidth=1.2, label=title)
                axes.fill_between(labels, mean - half, mean + half, color=style.PALETTE[index], alpha=0.2, linewidth=0)
            axes.set(title=name, xlabel="labels")
        figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        return style.saved(figure, "svg", dpi=200)


def labels_of(curves: np.ndarray, options: argparse.Namespace) -> np.ndarray:
    """The number of labels in each round."""
    return options.labels - options.step * np.arange(curves.shape[1])[::-1]


def main(options: argparse.Namespace) -> None:
    model, results = Model.create(image_size=options.image_size), {}
    for folder in options.folders:
        random, suggested = results[folder.name] = compare(folder, model, options)
        labels = labels_of(random, options)
        shown = [*range(0, len(labels), max(1, len(labels) // 6))]
        print(f"| {folder.name} | {' | '.join(str(labels[i]) for i in shown)} | labels needed | difference |")
        print("| --- |" + " ---: |" * (len(shown) + 2))
        print(f"| random | {' | '.join(f'{random[:, i].mean():.1f}' for i in shown)} | {labels[-1]} | |")
        needed = interval(labels_needed(random, suggested, labels))
        difference = interval((suggested - random).mean(axis=1))
        cells = " | ".join(f"{suggested[:, i].mean():.1f}" for i in shown)
        print(f"| suggested | {cells} | {needed} | {difference} |\n", flush=True)
    if options.picture is not None:
        options.picture.write_bytes(picture(results, options))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.suggestions", description=__doc__)
    made.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    for name, default, what in (
        ("pool", 50, "images per class to choose from"),
        ("start", 2, "labels per class at the start"),
        ("step", 10, "labels per round"),
        ("labels", 200, "labels at the end"),
        ("draws", 5, "of the pool"),
        ("image-size", 64, "in pixels"),
    ):
        made.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: {default})")
    made.add_argument("--picture", type=Path, metavar="FILE.svg", help="the curves")
    return made


if __name__ == "__main__":
    main(parser().parse_args())
