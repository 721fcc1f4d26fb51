"""The journal: every example, label and class, on the disk before it is acknowledged; in order, for the learner.

SQLite in WAL mode with synchronous=FULL. The HTTP process writes, the learner's process reads and drops images that
nobody needs any more.
"""

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dualnet.serve.errors import ConflictError, MissingError
from dualnet.serve.options import Options

SCHEMA = """
CREATE TABLE IF NOT EXISTS classes (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS examples (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, time REAL NOT NULL, digest BLOB NOT NULL,
    pixels BLOB, label TEXT, held_out INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS by_digest ON examples (digest);
CREATE INDEX IF NOT EXISTS by_label ON examples (label);
CREATE INDEX IF NOT EXISTS with_pixels ON examples (label, held_out) WHERE pixels IS NOT NULL;
CREATE TABLE IF NOT EXISTS deleted (digest BLOB PRIMARY KEY);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS history (number INTEGER PRIMARY KEY, status TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS log (
    position INTEGER PRIMARY KEY AUTOINCREMENT, request INTEGER NOT NULL, kind TEXT NOT NULL,
    example INTEGER, name TEXT, digest BLOB);
"""
UNLABELLED = "label IS NULL AND pixels IS NOT NULL"
HELD_OUT = "held_out AND label IS NOT NULL AND pixels IS NOT NULL"


class Entry(NamedTuple):
    """A line of the log. `kind`: class, example, label, delete or restore; `name`: of the class or snapshot."""

    position: int
    request: int  # lines of one request have the same number
    kind: str
    example: int | None
    name: str | None
    digest: bytes | None  # of the pixels of a deleted example
    pixels: bytes | None  # None: not an example, or one that is deleted
    held_out: bool


class Example(NamedTuple):
    number: int
    id: str
    time: float
    digest: bytes
    pixels: bytes | None
    label: str | None
    held_out: bool


class Journal:
    """One per process; threads take turns."""

    def __init__(self, file: Path, options: Options) -> None:
        self.options = options
        self.lock = threading.RLock()
        self.database = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
            self.database.execute(f"PRAGMA {pragma}")
        self.database.executescript(SCHEMA)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """On the disk when the block ends, all of it or nothing."""
        with self.lock, self.database:
            self.database.execute("BEGIN IMMEDIATE")
            self.request = self.last_position() + 1  # the position of its first line is its number
            yield

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.lock:
            return self.database.execute(query, values).fetchall()

    def value(self, query: str, *values: Any) -> Any:
        """The first one that is found; None if there is none."""
        return next((row[0] for row in self.rows(query, *values)), None)

    def start(self) -> int:
        """The number of this start of the service, from 1."""
        with self.transaction():
            count = self.value("PRAGMA user_version") + 1
            self.rows(f"PRAGMA user_version={count}")
        return count

    # What requests do. Each returns the last position

    def add_classes(self, names: Sequence[str]) -> int:
        with self.transaction():
            known = self.classes()
            if again := [name for name in names if name in known]:
                raise ConflictError(f"class {again[0]!r} is there already")
            return [self.make_class(name) for name in names][-1]

    def add_examples(
        self, ids: Sequence[str], images: Sequence[np.ndarray], labels: Sequence[str | None], new_class: bool
    ) -> tuple[int, list[bool]]:
        """Keep images with their labels. Returns also which ones were there before.

        An id that is there with the same image is no second example; with another image it is refused.
        """
        with self.transaction():
            for name in dict.fromkeys(label for label in labels if label is not None):
                self.check_class(name, new_class)
            there = [self.add_example(*one) for one in zip(ids, images, labels, strict=True)]
            return self.last_position(), there

    def add_example(self, id: str, image: np.ndarray, label: str | None) -> bool:
        pixels = image.tobytes()
        digest = digest_of(pixels)
        if before := self.rows("SELECT digest, label FROM examples WHERE id = ?", id):
            if before[0][0] != digest or label not in (None, before[0][1]):
                raise ConflictError(f"id {id!r} is there with another image or label; use another, or PUT its label")
            return True
        values = (id, time.time(), digest, pixels, label, self.is_held_out(label))
        query = "INSERT INTO examples (id, time, digest, pixels, label, held_out) VALUES (?, ?, ?, ?, ?, ?)"
        self.append("example", self.value(f"{query} RETURNING number", *values), label)
        return False

    def set_label(self, id: str, label: str, new_class: bool) -> int:
        with self.transaction():
            example = self.example(id)
            if example.label == label:
                return self.last_position()
            if example.pixels is None:
                raise ConflictError(f"the image of {id!r} is no longer kept; post it again with its label")
            self.check_class(label, new_class)
            held_out = self.is_held_out(label) if example.label is None else example.held_out
            self.rows("UPDATE examples SET label = ?, held_out = ? WHERE id = ?", label, held_out, id)
            return self.append("label", example.number, label)

    def delete(self, id: str) -> int:
        """The example leaves the journal, and the memory once the learner has read this."""
        with self.transaction():
            digest = self.example(id).digest
            self.rows("DELETE FROM examples WHERE id = ?", id)
            self.rows("INSERT OR IGNORE INTO deleted VALUES (?)", digest)
            return self.append("delete", digest=digest)

    def restore(self, snapshot: int) -> int:
        with self.transaction():
            return self.append("restore", name=str(snapshot))

    # Within a transaction

    def append(
        self, kind: str, example: int | None = None, name: str | None = None, digest: bytes | None = None
    ) -> int:
        query = "INSERT INTO log (request, kind, example, name, digest) VALUES (?, ?, ?, ?, ?) RETURNING position"
        return self.value(query, self.request, kind, example, name, digest)

    def make_class(self, name: str) -> int:
        most = self.options.most_classes
        if self.value("SELECT COUNT(*) FROM classes") >= most:
            raise ConflictError(f"there are {most} classes already, which is the limit (--most-classes)")
        self.rows("INSERT INTO classes (name) VALUES (?)", name)
        return self.append("class", name=name)

    def check_class(self, name: str, new: bool) -> None:
        if name not in self.classes():
            if not new:
                raise ConflictError(f"class {name!r} is not there; add it, or send new_class=true")
            self.make_class(name)

    def is_held_out(self, label: str | None) -> bool:
        """The tenth labelled example of a class, the twentieth and so on, if one in 10 is held out."""
        every = self.options.held_out_every
        if label is None or every == 0:
            return False
        return (self.value("SELECT COUNT(*) FROM examples WHERE label = ?", label) + 1) % every == 0

    # What is asked

    def classes(self) -> list[str]:
        return [name for (name,) in self.rows("SELECT name FROM classes ORDER BY number")]

    def counts(self) -> dict[str | None, int]:
        """Examples by label."""
        return dict(self.rows("SELECT label, COUNT(*) FROM examples GROUP BY label"))

    def example(self, id: str) -> Example:
        found = self.rows(f"SELECT {', '.join(Example._fields)} FROM examples WHERE id = ?", id)
        if not found:
            raise MissingError(f"example {id!r}")
        return Example(*found[0])

    def examples_of(self, digests: Sequence[bytes]) -> list[tuple[str, str | None]]:
        """Id and label of the examples with these pixels."""
        marks = ", ".join("?" * len(digests))
        return self.rows(f"SELECT id, label FROM examples WHERE digest IN ({marks}) ORDER BY number", *digests)

    def newest_unlabelled(self, most: int) -> list[str]:
        query = f"SELECT id FROM examples WHERE {UNLABELLED} ORDER BY number DESC LIMIT ?"
        return [id for (id,) in self.rows(query, most)]

    def last_position(self) -> int:
        return self.numbered("log")

    def received(self) -> int:
        """Examples received ever."""
        return self.numbered("examples")

    def numbered(self, table: str) -> int:
        """The last number that was given to a row of it."""
        return self.value("SELECT seq FROM sqlite_sequence WHERE name = ?", table) or 0

    # What the learner does

    def adopt_classes(self, names: Sequence[str]) -> None:
        """Those of a model that came with some."""
        with self.transaction():
            for name in names:
                self.rows("INSERT OR IGNORE INTO classes (name) VALUES (?)", name)

    def in_memory(self, position: int, digests: Sequence[bytes] | None = None) -> dict[bytes, Counter[str]]:
        """What the memory may hold of the examples with these pixels, or of all: how many of each label, by digest.

        Those that have an entry at the position or later are not counted: they are to be learned, or will be. Pixels
        that were never here are left out.
        """
        some = "" if digests is None else f"WHERE digest IN ({', '.join('?' * len(digests))})"
        found: dict[bytes, Counter[str]] = {}
        for (digest,) in self.rows(f"SELECT digest FROM deleted {some}", *(digests or ())):
            found[digest] = Counter()
        later = "number IN (SELECT example FROM log WHERE position >= ?)"
        query = f"SELECT digest, label, held_out OR {later} FROM examples {some}"
        for digest, label, left_out in self.rows(query, position, *(digests or ())):
            found.setdefault(digest, Counter())[label] += not left_out
        return found

    def note(self, name: str) -> int:
        """What was noted last; 0 before."""
        return self.value("SELECT value FROM notes WHERE name = ?", name) or 0

    def set_note(self, name: str, value: int) -> None:
        self.rows("INSERT OR REPLACE INTO notes VALUES (?, ?)", name, value)

    def after(self, position: int, most: int) -> list[Entry]:
        query = """SELECT position, request, kind, example, log.name, log.digest, pixels, COALESCE(held_out, 0)
            FROM log LEFT JOIN examples ON number = example WHERE position > ? ORDER BY position LIMIT ?"""
        return [Entry(*row) for row in self.rows(query, position, most)]

    def held_out(self) -> list[tuple[int, str, bytes]]:
        return self.rows(f"SELECT number, label, pixels FROM examples WHERE {HELD_OUT} ORDER BY number")

    def some_unlabelled(self, count: int) -> list[bytes]:
        """Drawn anew at every call."""
        drawn = f"SELECT number FROM examples WHERE {UNLABELLED} ORDER BY random() LIMIT ?"
        return [row[0] for row in self.rows(f"SELECT pixels FROM examples WHERE number IN ({drawn})", count)]


def digest_of(pixels: bytes) -> bytes:
    return blake2b(pixels, digest_size=16).digest()
