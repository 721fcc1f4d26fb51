"""`dualnet evaluate`: the accuracy of a model on a folder of test images, by class."""

import argparse
import json
from collections import Counter
from typing import Any

import numpy as np
import torch

from dualnet.cli.predict import STDOUT, check_table, write_table
from dualnet.cli.terminal import fail, print_line, print_rich, show_warning
from dualnet.data.image_folder import read_files
from dualnet.data.inputs import square_side
from dualnet.models.model import load
from dualnet.models.predictions import Evaluation
from dualnet.report.cells import Cell, Number, Table
from dualnet.report.terminal import rich_table
from dualnet.text import join_first, pluralise

THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)
MAX_CONFUSIONS = 3  # of a class, in the table


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    if arguments.csv:
        check_table(arguments.csv, arguments.json)
    model = load(arguments.run, trust=arguments.trust)
    size = square_side(model.learner.spec.image_shape)
    files = read_files(arguments.folder, None, size, arguments.on_error)
    known = {row: name for row, name in enumerate(files.names) if name in model.class_names}
    if others := sorted({*files.classes} - {*model.class_names}):
        if not known:
            raise ValueError(f"{arguments.folder}: {join_first(others)}: unknown to the model; name another folder")
        count = pluralise(len(files.names) - len(known), "image")
        show_warning(f"{join_first(others)}: left out with {count}, unknown to the model")
    evaluation = model.evaluate(torch.from_numpy(files.decoded[np.array([*known])]), [*known.values()])
    if arguments.json:
        totals = {"accuracy": evaluation.accuracy, "images": len(known), "unknown": evaluation.unknown}
        print(json.dumps({**totals, **parts(evaluation)}))
    elif arguments.csv != STDOUT:
        count = pluralise(len(known), "image")
        print_line(f"{arguments.run}: accuracy {evaluation.accuracy:.1f} % ({evaluation.correct:,} of {count} correct)")
        if evaluation.unknown:
            print_line(f"refused by `predict` as unknown: {evaluation.unknown:,} of {count}")
        for table, title in tables(evaluation):
            print_line("")
            print_rich(rich_table(table, title), width=100)
    if arguments.csv:
        pairs = zip(known.items(), evaluation.predictions, strict=True)
        cells = (
            [files.decoded.file(row), label, answer.name, answer.probability, json.dumps(answer.unknown)]
            for (row, label), answer in pairs
        )
        write_table(arguments.csv, [("image", "class", "prediction", "probability", "unknown"), *cells])
    if arguments.at_least is not None and evaluation.accuracy < arguments.at_least:
        return fail(f"{arguments.run}: the accuracy is {evaluation.accuracy:.2f} %, below {arguments.at_least:g} %", 1)
    return 0


def parts(evaluation: Evaluation) -> dict[str, list[dict[str, Any]]]:
    """Results by class, the least accurate first, and by threshold; shares in percent, None of no predictions."""
    counts, predicted = Counter(evaluation.labels), Counter(prediction.name for prediction in evaluation.predictions)
    confusions, classes = evaluation.confusions().most_common(), []
    for name, accuracy in sorted(evaluation.class_accuracies().items(), key=lambda pair: pair[1]):
        mistaken = {answer: count for (label, answer), count in confusions if label == name}
        correct = counts[name] - sum(mistaken.values())
        precision = 100 * correct / predicted[name] if predicted[name] else None
        shares = {"images": counts[name], "accuracy": accuracy, "precision": precision}
        classes.append({"name": name, **shares, "mistaken_for": mistaken})
    thresholds = []
    for threshold in THRESHOLDS:
        reached, correct = evaluation.with_threshold(threshold)
        shares = {
            "predicted": 100 * reached / len(evaluation.labels),
            "correct": 100 * correct / reached if reached else None,
        }
        thresholds.append({"threshold": threshold, **shares})
    return {"classes": classes, "thresholds": thresholds}


def tables(evaluation: Evaluation) -> list[tuple[Table, str]]:
    content = parts(evaluation)
    classes: list[list[Cell]] = []
    for of in content["classes"]:
        mistaken = ", ".join(f"{name} {count}" for name, count in list(of["mistaken_for"].items())[:MAX_CONFUSIONS])
        shares = [Number(of[share], "percent") for share in ("accuracy", "precision")]
        classes.append([of["name"], Number(of["images"]), *shares, mistaken])
    thresholds: list[list[Cell]] = [
        [Number(of["threshold"], "label"), Number(of["predicted"], "percent"), Number(of["correct"], "percent")]
        for of in content["thresholds"]
    ]
    return [
        (
            Table(["class", "images", "accuracy", "precision", "mistaken for"], classes),
            "classes, the least accurate first",
        ),
        (Table(["threshold", "predicted", "correct of these"], thresholds), "with `predict --threshold`"),
    ]
