"""The journal: every example, label and class, written to disk before it is acknowledged, in the order received.

SQLite in WAL mode with synchronous=FULL. The HTTP process writes; the learner process reads, renames and removes
classes, and deletes images that are no longer needed.
"""

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dualnet.models.held_out import is_held_out, pixel_digest
from dualnet.serve.errors import RequestError
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
CREATE TABLE IF NOT EXISTS deleted_ids (id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS history (number INTEGER PRIMARY KEY, status TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS log (
    position INTEGER PRIMARY KEY AUTOINCREMENT, request INTEGER NOT NULL, kind TEXT NOT NULL,
    example INTEGER, name TEXT, digest BLOB);
"""
UNLABELLED = "label IS NULL AND pixels IS NOT NULL"
HELD_OUT = "held_out AND label IS NOT NULL AND pixels IS NOT NULL"
MAX_HELD_OUT = 20  # images kept per class
MAX_HISTORY = 400  # statuses

Event = tuple[int, str, dict[str, Any]]  # number, kind (`status` or `notice`), content


class Entry(NamedTuple):
    """A log entry. `kind`: class, example, label or delete; `name`: the class."""

    position: int
    request: int  # entries of one request have the same number
    kind: str
    example: int | None
    name: str | None
    digest: bytes | None  # of a deleted example's pixels
    pixels: bytes | None  # None: not an example, or a deleted one
    held_out: bool


class Example(NamedTuple):
    number: int
    time: float
    digest: bytes
    pixels: bytes | None
    label: str | None
    held_out: bool


class Journal:
    """One instance per process; safe to use from several threads."""

    def __init__(self, file: Path, options: Options) -> None:
        self.options = options
        self.lock = threading.RLock()
        self.database = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
            self.database.execute(f"PRAGMA {pragma}")
        self.database.executescript(SCHEMA)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Atomic, and on disk when the block ends."""
        with self.lock, self.database:
            self.database.execute("BEGIN IMMEDIATE")
            self.request = self.last_position() + 1  # numbered by the position of its first entry
            yield

    def execute(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows that a query returns; none for a statement that changes the tables."""
        with self.lock:
            return self.database.execute(query, values).fetchall()

    def value(self, query: str, *values: Any) -> Any:
        """The first column of the first row; None if there is no row."""
        return next((row[0] for row in self.execute(query, *values)), None)

    # Writes by the HTTP process. Each returns the last position in the log

    def add_classes(self, names: Sequence[str]) -> int:
        with self.transaction():
            known = self.classes()
            if existing := [name for name in names if name in known]:
                raise RequestError(409, f"class {existing[0]!r} already exists")
            return [self.create_class(name) for name in names][-1]

    def add_examples(
        self, ids: Sequence[str], images: Sequence[np.ndarray], labels: Sequence[str | None], new_class: bool
    ) -> tuple[int, list[bool]]:
        """Store images with their labels. Also returns which of them were duplicates.

        An existing id with the same image and label is a duplicate and not stored again; with others it is a conflict.
        """
        with self.transaction():
            for name in dict.fromkeys(label for label in labels if label is not None):
                self.ensure_class(name, new_class)
            duplicates = [self.add_example(*one) for one in zip(ids, images, labels, strict=True)]
            return self.last_position(), duplicates

    def add_example(self, id: str, image: np.ndarray, label: str | None) -> bool:
        pixels = image.tobytes()
        digest = pixel_digest(pixels)
        if existing := self.execute("SELECT digest, label FROM examples WHERE id = ?", id):
            if existing[0][0] != digest or label not in (None, existing[0][1]):
                message = f"id {id!r} exists with another image or label; use another id, or PUT its label"
                raise RequestError(409, message)
            return True
        values = (id, time.time(), digest, pixels, label, self.is_held_out(label, digest))
        query = "INSERT INTO examples (id, time, digest, pixels, label, held_out) VALUES (?, ?, ?, ?, ?, ?)"
        self.append("example", self.value(f"{query} RETURNING number", *values), label)
        self.execute("DELETE FROM deleted_ids WHERE id = ?", id)
        return False

    def set_label(self, id: str, label: str, new_class: bool) -> int:
        with self.transaction():
            example = self.example(id)
            if example.label == label:
                return self.last_position()
            if example.pixels is None:
                raise RequestError(409, f"the image of {id!r} is no longer stored; post it again with its label")
            self.ensure_class(label, new_class)
            held_out = self.is_held_out(label, example.digest) if example.label is None else example.held_out
            self.execute("UPDATE examples SET label = ?, held_out = ? WHERE id = ?", label, held_out, id)
            return self.append("label", example.number, label)

    def delete(self, id: str) -> int:
        """Delete an example, except its id; the learner removes it from the memory when it reads the entry."""
        with self.transaction():
            digest = self.example(id).digest
            self.execute("DELETE FROM examples WHERE id = ?", id)
            self.execute("INSERT OR IGNORE INTO deleted VALUES (?)", digest)
            self.execute("INSERT INTO deleted_ids VALUES (?)", id)
            return self.append("delete", None, digest=digest)

    # Helpers, called within a transaction

    def append(self, kind: str, example: int | None, name: str | None = None, digest: bytes | None = None) -> int:
        query = "INSERT INTO log (request, kind, example, name, digest) VALUES (?, ?, ?, ?, ?) RETURNING position"
        return self.value(query, self.request, kind, example, name, digest)

    def create_class(self, name: str) -> int:
        most = self.options.most_classes
        if self.value("SELECT COUNT(*) FROM classes") >= most:
            raise RequestError(409, f"the limit of {most} classes is reached (--most-classes)")
        self.insert_class(name)
        return self.append("class", None, name)

    def insert_class(self, name: str) -> None:
        self.execute("INSERT INTO classes VALUES (?, ?)", self.last_class() + 1, name)

    def ensure_class(self, name: str, create: bool) -> None:
        if name not in self.classes():
            if not create:
                raise RequestError(409, f"class {name!r} does not exist; add it, or send new_class=true")
            self.create_class(name)

    def class_name(self, number: int) -> str:
        if (name := self.classes_by_number().get(number)) is None:
            raise RequestError(404, f"class {number} does not exist")
        return name

    def last_class(self) -> int:
        """The largest number that a class ever had: those of removed classes are not used again."""
        query = "SELECT MAX(number) FROM (SELECT number FROM classes UNION SELECT value FROM notes WHERE name = ?)"
        return self.value(query, "last_class") or 0

    def is_held_out(self, label: str | None, digest: bytes) -> bool:
        return label is not None and is_held_out(digest, self.options.held_out_every)

    # Queries

    def classes(self) -> list[str]:
        return list(self.classes_by_number().values())

    def classes_by_number(self) -> dict[int, str]:
        return dict(self.execute("SELECT number, name FROM classes ORDER BY number"))

    def counts(self) -> dict[str | None, int]:
        """Number of examples by label."""
        return dict(self.execute("SELECT label, COUNT(*) FROM examples GROUP BY label"))

    def example(self, id: str) -> Example:
        found = self.execute(f"SELECT {', '.join(Example._fields)} FROM examples WHERE id = ?", id)
        if not found and self.execute("SELECT id FROM deleted_ids WHERE id = ?", id):
            raise RequestError(410, f"example {id!r} was deleted")
        if not found:
            raise RequestError(404, f"example {id!r} does not exist")
        return Example(*found[0])

    def examples_with(self, digests: Iterable[bytes]) -> list[tuple[str, str | None]]:
        """Id and label of the examples whose pixels have these digests, oldest first."""
        query = "SELECT number, id, label FROM examples WHERE digest = ?"
        return [row[1:] for row in sorted(row for digest in digests for row in self.execute(query, digest))]

    def newest_unlabelled(self, most: int) -> list[str]:
        query = f"SELECT id FROM examples WHERE {UNLABELLED} ORDER BY number DESC LIMIT ?"
        return [id for (id,) in self.execute(query, most)]

    def last_position(self) -> int:
        return self.last_number("log")

    def received(self) -> int:
        """Number of examples ever received, including deleted ones."""
        return self.last_number("examples")

    def last_number(self, table: str) -> int:
        """The largest number ever assigned to a row of the table."""
        return self.value("SELECT seq FROM sqlite_sequence WHERE name = ?", table) or 0

    # For the learner process

    def adopt(self, names: Sequence[str]) -> None:
        """Add the classes of a model given by `--model`, when the journal is new."""
        with self.transaction():
            for name in names if self.last_class() == 0 else ():
                self.insert_class(name)

    def rename_class(self, number: int, name: str) -> None:
        """Rename a class everywhere.

        Only the learner process does this, between two batches, when it holds no entry with the old name.
        """
        with self.transaction():
            old = self.class_name(number)
            if name == old:
                return
            if name in self.classes():
                raise RequestError(409, f"class {name!r} already exists")
            for table, column in (("classes", "name"), ("examples", "label"), ("log", "name")):
                self.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", name, old)

    def remove_class(self, number: int) -> None:
        """Remove a class, and delete its examples as `delete` does. Only the learner process does this."""
        with self.transaction():
            name, of_class = self.class_name(number), "FROM examples WHERE label = ?"
            self.execute(f"INSERT OR IGNORE INTO deleted SELECT digest {of_class}", name)
            self.execute(f"INSERT INTO deleted_ids SELECT id {of_class}", name)
            self.execute("DELETE FROM log WHERE name = ?", name)
            entries = f"SELECT ?, 'delete', digest {of_class} AND pixels IS NOT NULL"
            self.execute(f"INSERT INTO log (request, kind, digest) {entries}", self.request, name)
            self.execute(f"DELETE {of_class}", name)
            self.execute("INSERT OR REPLACE INTO notes VALUES ('last_class', ?)", self.last_class())
            self.execute("DELETE FROM classes WHERE number = ?", number)
            self.append("delete", None)  # so that the learner passes the position of the entries deleted here

    def learned_labels(self, digest: bytes, position: int) -> Counter[str] | None:
        """How often the memory may hold an image, by label; None if it did not come from the journal.

        Examples with a log entry at the position or later do not count: the learner has yet to learn them.
        """
        pending = "number IN (SELECT example FROM log WHERE position >= ?)"
        found = self.execute(f"SELECT label, held_out OR {pending} FROM examples WHERE digest = ?", position, digest)
        if not found and not self.execute("SELECT * FROM deleted WHERE digest = ?", digest):
            return None
        return Counter(label for label, excluded in found if not excluded)

    def is_paused(self) -> bool:
        """Whether the background is paused, which outlives a restart."""
        return bool(self.value("SELECT value FROM notes WHERE name = 'paused'"))

    def set_paused(self, paused: bool) -> None:
        self.execute("INSERT OR REPLACE INTO notes VALUES ('paused', ?)", int(paused))

    def entries_after(self, position: int, most: int) -> list[Entry]:
        query = """SELECT position, request, kind, example, log.name, log.digest, pixels, COALESCE(held_out, 0)
            FROM log LEFT JOIN examples ON number = example WHERE position > ? ORDER BY position LIMIT ?"""
        return [Entry(*row) for row in self.execute(query, position, most)]

    def held_out(self) -> list[tuple[int, str, bytes]]:
        return self.execute(f"SELECT number, label, pixels FROM examples WHERE {HELD_OUT} ORDER BY number")

    def sample_unlabelled(self, count: int) -> list[bytes]:
        """Pixels of random unlabelled examples."""
        drawn = f"SELECT number FROM examples WHERE {UNLABELLED} ORDER BY random() LIMIT ?"
        return [row[0] for row in self.execute(f"SELECT pixels FROM examples WHERE number IN ({drawn})", count)]

    def prune(self, position: int, in_memory: Collection[bytes]) -> None:
        """Delete log entries up to a position that all checkpoints include, and images that are no longer needed.

        Needed are the images of the remaining log entries, those in the memory (given by digest), the newest unlabelled
        ones and the newest held-out ones of each class.
        """
        age = "ROW_NUMBER() OVER (PARTITION BY label ORDER BY number DESC) AS age"
        needed = f"""SELECT example FROM log WHERE example IS NOT NULL
            UNION SELECT number FROM (SELECT number, {age} FROM examples WHERE {HELD_OUT}) WHERE age <= {MAX_HELD_OUT}
            UNION SELECT number FROM (SELECT number FROM examples WHERE {UNLABELLED} ORDER BY number DESC LIMIT ?)"""
        query = f"SELECT number, digest FROM examples WHERE pixels IS NOT NULL AND number NOT IN ({needed})"
        with self.transaction():
            self.execute("DELETE FROM log WHERE position <= ?", position)
            for number, digest in self.execute(query, self.options.unlabelled_kept):
                if digest not in in_memory:
                    self.execute("UPDATE examples SET pixels = NULL WHERE number = ?", number)
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # until then deleted images are in the write-ahead log

    # The status history

    def add_status(self, history: Sequence[Event], event: Event) -> list[Event]:
        """The history with one more status. If it is full, the one whose neighbours are closest in time is dropped."""
        events = [*history, event]
        with self.transaction():
            self.execute("INSERT INTO history VALUES (?, ?)", event[0], json.dumps(event[2]))
            if len(events) > MAX_HISTORY:
                times = [status["time"] for _, _, status in events]
                dropped = min(range(1, len(events) - 1), key=lambda index: times[index + 1] - times[index - 1])
                self.execute("DELETE FROM history WHERE number = ?", events.pop(dropped)[0])
        return events

    def history(self) -> list[Event]:
        """Oldest first."""
        rows = self.execute("SELECT * FROM history ORDER BY number")
        return [(number, "status", json.loads(text)) for number, text in rows]
