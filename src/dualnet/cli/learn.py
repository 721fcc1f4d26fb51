"""`dualnet learn`: a model goes on with images of a folder, or a new one begins."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dualnet import engine
from dualnet.cli.terminal import fail, say
from dualnet.learners.presets import STARTER
from dualnet.nets.weights import starter_files
from dualnet.options import build, check_keys, dotted, merged
from dualnet.runs.model import NEW_MODEL
from dualnet.runs.progress import RunDisplay
from dualnet.runs.run import DivergedError
from dualnet.runs.run_folder import MODEL_FILE, RunFolder
from dualnet.runs.session import LearnOptions, Session, start

OF_SESSION = ("unlabelled", "test", "on_error", "task", "batch_size", "epochs")  # options, as flags call them
NAMED = 10  # new classes that are named
LABELS = {"memory": "stored images of the classes before", "old": "test images of the classes before"}
LABELS["new"] = "test images of the new classes"
QUICKER = "--image-size 48 --learner.updates 2 --out ANOTHER"  # as docs/benchmarks.md measures


def main(arguments: argparse.Namespace, words: list[str]) -> int:
    source, folder = source_and_folder(arguments.paths)
    options = options_of(arguments, words, source, folder)
    out, device = arguments.out, str(engine.choose_device(arguments.device))
    quicker = QUICKER if source is None and device == "cpu" else ""
    session = start(source, options, out, device, arguments.trust)
    before = "after" in session.record
    if not before:
        with RunFolder(out).locked():
            try:
                session.run(out, RunDisplay(Console(stderr=True), quicker), arguments.save_every)
            except DivergedError as error:
                return fail(f"{out}: {error}", 1)
    for line in summary(out, session, before):
        say(line)
    return 0


def options_of(arguments: argparse.Namespace, words: list[str], source: Path | None, folder: str) -> LearnOptions:
    """Those of the session and, without a source, of the new model."""
    given = dotted(words)
    check_keys(given, ["learner", *arguments.flags])
    learner = given.get("learner", {})
    if not isinstance(learner, dict):
        raise ValueError(f"--learner: {learner!r} is no option; its name is --learner.name")
    if learner and learner.get("name", NEW_MODEL["name"]) == NEW_MODEL["name"]:
        widths = (None, *map(str, starter_files()))
        has_starter = learner.get("start", "starter") == "starter" and learner.get("width") in widths
        other = {**NEW_MODEL, "preset": "best", "width": STARTER["width"]}  # whose encoder learns
        given["learner"] = merged(NEW_MODEL if has_starter and "encoder" not in learner else other, learner)
    asked = {"image_size": arguments.image_size, "seed": arguments.seed, **given}
    of_new = {option: value for option, value in asked.items() if value is not None}
    if source is not None and of_new:
        option = next(iter(of_new)).replace("_", "-")
        raise ValueError(f"--{option}: {source} keeps the options that it was made with; leave it out")
    of_session = {option: getattr(arguments, option) for option in OF_SESSION}  # as given: a folder may be called null
    return replace(build(LearnOptions, {"train": "", **of_new}), train=folder, **of_session)


def source_and_folder(paths: Sequence[str]) -> tuple[Path | None, str]:
    """Of one path or two. Raises ValueError where one of them is what the other should be."""
    *first, folder = paths
    if len(first) > 1:
        raise ValueError(f"{paths[2]}: not expected here; give one folder, with a sub-folder of images per class")
    if is_model(folder):
        raise ValueError(f"{folder}: is a model; name the folder of images to learn after it")
    if first and not is_model(first[0]):
        raise ValueError(f"{first[0]}: neither a saved model nor a run folder; for a new model give FOLDER alone")
    return Path(first[0]) if first else None, folder


def is_model(path: str) -> bool:
    return (Path(path) / MODEL_FILE).is_file() or RunFolder(Path(path)).begun


def summary(out: Path, session: Session, before: bool) -> list[str]:
    """What was learned, and what became of the classes that the model knew."""
    record, files, names = session.record, session.files, session.model.class_names
    new = names[record["old"] :]
    which = f"{len(new)} of them new ({', '.join(new[:NAMED])})" if new else "none of them new"
    what = f"{len(names)} classes" + (f", {which}" if record["old"] else "")
    passes = f", {session.options.epochs} times" if session.options.epochs > 1 else ""
    lines = [f"{out}: {'finished before; ' if before else ''}{what}; learned from {len(files)} images{passes}"]
    labels = LABELS if record["old"] else {"new": "test images"}
    for part, words in labels.items():
        if part in record["after"]:
            after, count = record["after"][part]
            first = f"{record['before'][part][0]:.1f} % before, " if part in record["before"] else ""
            lines.append(f"  {words}: {first}{after:.1f} % now ({count})")
    return [*lines, f"`dualnet predict {out} IMAGE` names the class of an image"]
