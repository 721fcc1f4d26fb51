"""Verifies a state folder, and mends one that was damaged."""

import math
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from filelock import FileLock

from dualnet import atomic
from dualnet.models.model import Model
from dualnet.serve import state_folder
from dualnet.serve.errors import DISK_ERRORS
from dualnet.serve.journal import Journal
from dualnet.serve.memory_contents import follow, known_digests
from dualnet.serve.options import Options


@contextmanager
def opened_journal(options: Options) -> Iterator[Journal]:
    """While no learner process uses the folder. Raises ValueError or OSError, one line, if it is damaged."""
    file = options.state / state_folder.JOURNAL
    if not file.exists():
        raise ValueError(f"--state {options.state}: has no {file.name}; nothing can be verified or repaired")
    with FileLock(options.state / state_folder.LEARNER_LOCK):
        try:
            journal = Journal(file, options)
            try:
                yield journal
            finally:
                journal.database.close()  # which merges the latest changes
        except DISK_ERRORS as error:
            raise state_folder.failure(error, options) from error


def check(options: Options) -> str:
    """What the folder holds, in one line. Raises ValueError if anything in it is missing or damaged."""
    with opened_journal(options) as journal:
        journal.check()
        model, _ = state_folder.load_saved(options, journal)
        snapshots = state_folder.list_snapshots(options)
        for snapshot in snapshots:
            state_folder.load_snapshot(options, snapshot["number"], journal, model)
        examples, classes = sum(journal.counts().values()), len(journal.classes())
    return f"--state {options.state}: intact, with {examples} examples, {classes} classes, {len(snapshots)} snapshots"


def repair(options: Options) -> None:
    """Mend the journal. Replace a model that cannot be used by the last snapshot, or a new one, which learns again."""
    with opened_journal(options) as journal:
        damage = damage_of(journal)
        if damage:
            copy_journal(options, journal.database)
    with opened_journal(options) as journal:
        if damage:
            images, names = journal.mend()
            journal.check()
            lost = f"{images} of them without their image; {names} classes without their name"
            what = f"{sum(journal.counts().values())} examples could be read, {lost}"
            warnings.warn(
                f"--state {options.state}: {state_folder.JOURNAL} was damaged ({damage}); {what}", stacklevel=2
            )
        try:
            state_folder.load_saved(options, journal)
        except state_folder.UnusableError as error:
            if journal.last_position() == 0:
                raise
            warnings.warn(f"--state {options.state}: {error.reason}; {replace_model(options, journal)}", stacklevel=2)


def damage_of(journal: Journal) -> str:
    """What is damaged; empty if nothing is."""
    try:
        journal.check()
    except sqlite3.DatabaseError as error:
        return str(error)
    return ""


def copy_journal(options: Options, damaged: sqlite3.Connection) -> None:
    """Replace the file by one with everything that can be read, and keep it under another name."""
    file = options.state / state_folder.JOURNAL
    new = file.with_name(f"{file.name}{atomic.TEMPORARY}")
    new.unlink(missing_ok=True)
    copy = Journal(new, options)
    copy.copy_readable(damaged)
    copy.database.close()
    copy.noted.unlink(missing_ok=True)
    damaged.close()
    for part in file.parent.glob(f"{file.name}*"):
        if part != new:
            part.rename(part.with_name(f"{former()}-{part.name}"))
    new.rename(file)
    atomic.flush(file.parent)


def former() -> str:
    return f"former-{int(time.time())}"


def replace_model(options: Options, journal: Journal) -> str:
    """Returns what was done. The journal is first: a repair that is cut off can be repeated."""
    model, source = last_snapshot(options, journal) or (initial_model(options, journal), "a new model")
    position = journal.last_position()
    follow(journal, model)
    folder = options.state / state_folder.MODEL
    if folder.exists():
        folder.rename(folder.with_name(f"{former()}-{folder.name}"))
    journal.learn_again(known_digests(model))
    state_folder.save(model, options, {**state_folder.NEW_PROGRESS, "position": position})
    return f"{source} replaces it and learns all stored images"


def last_snapshot(options: Options, journal: Journal) -> tuple[Model, str] | None:
    for snapshot in reversed(state_folder.list_snapshots(options)):
        try:
            return state_folder.load_snapshot(options, snapshot["number"], journal), f"snapshot {snapshot['number']}"
        except ValueError as error:
            warnings.warn(str(error), stacklevel=2)
    return None


def initial_model(options: Options, journal: Journal) -> Model:
    """A new model for images of the stored size, with the classes of the journal."""
    if options.model is None and options.image_size is None:
        pixels = journal.value("SELECT LENGTH(pixels) FROM examples WHERE pixels IS NOT NULL")
        options = options if pixels is None else replace(options, image_size=math.isqrt(pixels // 3))
    model = state_folder.new_model(options)
    return state_folder.with_classes(model, journal)
