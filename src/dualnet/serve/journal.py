"""The journal: every example, label and class, on the disk before it is acknowledged; in order, for the learner.

SQLite in WAL mode with synchronous=FULL. The HTTP process writes, the learner's process reads and drops images that
nobody needs any more.
"""

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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


class ConflictError(ValueError):
    """What the request asks does not fit what is there."""


class Journal:
    """One per process; threads take turns."""

    def __init__(self, file: Path) -> None:
        self.lock = threading.Lock()
        self.database = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
            self.database.execute(f"PRAGMA {pragma}")
        self.database.executescript(SCHEMA)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """On the disk when the block ends, all of it or nothing."""
        with self.lock:
            self.database.execute("BEGIN IMMEDIATE")
            try:
                yield self.database
                self.database.execute("COMMIT")
            except BaseException:  # a full disk may have ended it already
                if self.database.in_transaction:
                    self.database.execute("ROLLBACK")
                raise

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.lock:
            return self.database.execute(query, values).fetchall()

    def start(self) -> int:
        """The number of this start of the service, from 1."""
        with self.transaction() as database:
            count = database.execute("PRAGMA user_version").fetchone()[0] + 1
            database.execute(f"PRAGMA user_version={count}")
        return count

    # What requests do

    def add_classes(self, names: Sequence[str], most: int) -> None:
        with self.transaction() as database:
            known = known_classes(database)
            if again := [name for name in names if name in known]:
                raise ConflictError(f"class {again[0]!r} is there already")
            self.make_classes(database, names, last_position(database) + 1, most)

    def make_classes(self, database: sqlite3.Connection, names: Iterable[str], request: int, most: int) -> None:
        for name in names:
            if database.execute("SELECT COUNT(*) FROM classes").fetchone()[0] >= most:
                raise ConflictError(f"there are {most} classes already, which is the limit (--most-classes)")
            database.execute("INSERT INTO classes (name) VALUES (?)", (name,))
            append(database, request, "class", name=name)

    def add_examples(
        self,
        ids: Sequence[str],
        images: Sequence[np.ndarray],
        labels: Sequence[str | None],
        new_class: bool,
        options: Any,
    ) -> tuple[int, list[bool]]:
        """Keep images with their labels. Returns the last position, and which ones were there before.

        An id that is there with the same image is no second example; with another image it is refused.
        """
        with self.transaction() as database:
            request = last_position(database) + 1
            for name in dict.fromkeys(label for label in labels if label is not None):
                self.check_class(database, name, new_class, request, options.most_classes)
            each = zip(ids, images, labels, strict=True)
            there = [self.add_example(database, request, *one, options.held_out_every) for one in each]
            return last_position(database), there

    def add_example(
        self, database: sqlite3.Connection, request: int, id: str, image: np.ndarray, label: str | None, every: int
    ) -> bool:
        pixels = image.tobytes()
        digest = digest_of(pixels)
        before = database.execute("SELECT digest, label FROM examples WHERE id = ?", (id,)).fetchone()
        if before is not None:
            if before[0] != digest or label not in (None, before[1]):
                raise ConflictError(f"id {id!r} is there with another image or label; use another, or PUT its label")
            return True
        held_out = is_held_out(database, label, every)
        values = (id, time.time(), digest, pixels, label, held_out)
        query = "INSERT INTO examples (id, time, digest, pixels, label, held_out) VALUES (?, ?, ?, ?, ?, ?)"
        number = database.execute(query, values).lastrowid
        append(database, request, "example", number, label)
        return False

    def set_label(self, id: str, label: str, new_class: bool, options: Any) -> int | None:
        """Returns the position, or None for an id that is not there."""
        with self.transaction() as database:
            request = last_position(database) + 1
            query = "SELECT number, pixels IS NULL, label, held_out FROM examples WHERE id = ?"
            found = database.execute(query, (id,)).fetchone()
            if found is None:
                return None
            number, dropped, before, held_out = found
            if before == label:
                return last_position(database)
            if dropped:
                raise ConflictError(f"the image of {id!r} is no longer kept; post it again with its label")
            self.check_class(database, label, new_class, request, options.most_classes)
            held_out = held_out if before is not None else is_held_out(database, label, options.held_out_every)
            database.execute("UPDATE examples SET label = ?, held_out = ? WHERE number = ?", (label, held_out, number))
            return append(database, request, "label", number, label)

    def delete(self, id: str) -> int | None:
        """The example leaves the journal, and the memory once the learner has read this. None: it is not there."""
        with self.transaction() as database:
            found = database.execute("DELETE FROM examples WHERE id = ? RETURNING digest", (id,)).fetchone()
            if found is None:
                return None
            database.execute("INSERT OR IGNORE INTO deleted VALUES (?)", found)
            return append(database, last_position(database) + 1, "delete", digest=found[0])

    def restore(self, snapshot: int) -> int:
        with self.transaction() as database:
            return append(database, last_position(database) + 1, "restore", name=str(snapshot))

    def check_class(self, database: sqlite3.Connection, name: str, new: bool, request: int, most: int) -> None:
        if name not in known_classes(database):
            if not new:
                raise ConflictError(f"class {name!r} is not there; add it, or send new_class=true")
            self.make_classes(database, [name], request, most)

    # What is asked

    def classes(self) -> list[str]:
        return [name for (name,) in self.rows("SELECT name FROM classes ORDER BY number")]

    def counts(self) -> dict[str | None, int]:
        """Examples by label."""
        return dict(self.rows("SELECT label, COUNT(*) FROM examples GROUP BY label"))

    def example(self, id: str) -> Example | None:
        columns = ", ".join(Example._fields)
        return next((Example(*row) for row in self.rows(f"SELECT {columns} FROM examples WHERE id = ?", id)), None)

    def examples_of(self, digests: Sequence[bytes]) -> list[tuple[str, str | None]]:
        """Id and label of the examples with these pixels."""
        marks = ", ".join("?" * len(digests))
        return self.rows(f"SELECT id, label FROM examples WHERE digest IN ({marks}) ORDER BY number", *digests)

    def newest_unlabelled(self, most: int) -> list[str]:
        query = f"SELECT id FROM examples WHERE {UNLABELLED} ORDER BY number DESC LIMIT ?"
        return [id for (id,) in self.rows(query, most)]

    def last_position(self) -> int:
        with self.lock:
            return last_position(self.database)

    def received(self) -> int:
        """Examples received ever."""
        return self.rows("SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'examples'")[0][0]

    # What the learner does

    def adopt_classes(self, names: Sequence[str]) -> None:
        """Those of a model that came with some."""
        with self.transaction() as database:
            database.executemany("INSERT OR IGNORE INTO classes (name) VALUES (?)", ((name,) for name in names))

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
        return next((value for (value,) in self.rows("SELECT value FROM notes WHERE name = ?", name)), 0)

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


def known_classes(database: sqlite3.Connection) -> set[str]:
    return {name for (name,) in database.execute("SELECT name FROM classes")}


def is_held_out(database: sqlite3.Connection, label: str | None, every: int) -> bool:
    """The tenth labelled example of a class, the twentieth and so on, if `every` is 10."""
    if label is None or every == 0:
        return False
    count = database.execute("SELECT COUNT(*) FROM examples WHERE label = ?", (label,)).fetchone()[0]
    return (count + 1) % every == 0


def append(
    database: sqlite3.Connection,
    request: int,
    kind: str,
    example: int | None = None,
    name: str | None = None,
    digest: bytes | None = None,
) -> int:
    query = "INSERT INTO log (request, kind, example, name, digest) VALUES (?, ?, ?, ?, ?)"
    position = database.execute(query, (request, kind, example, name, digest)).lastrowid
    assert position is not None
    return position


def last_position(database: sqlite3.Connection) -> int:
    """Every line of the log has its own: that of its first line numbers a request."""
    found = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'log'").fetchone()
    return found[0] if found else 0
