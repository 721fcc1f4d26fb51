"""The journal: every example, label and class, written to disk before it is acknowledged, in the order received.

SQLite in WAL mode with synchronous=FULL. The HTTP process writes; the learner process reads, and deletes images that
are no longer needed. A class has a number that is never used again; its name is in the table of classes only.
"""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dualnet.models.held_out import is_held_out, pixel_digest
from dualnet.serve.errors import RequestError
from dualnet.serve.options import Options

SCHEMA = """
CREATE TABLE IF NOT EXISTS classes (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS examples (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, time REAL NOT NULL, digest BLOB NOT NULL,
    pixels BLOB, label INTEGER, labelled INTEGER, held_out INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS by_digest ON examples (digest);
CREATE INDEX IF NOT EXISTS by_label ON examples (label);
CREATE INDEX IF NOT EXISTS held_out ON examples (label) WHERE held_out;
CREATE INDEX IF NOT EXISTS with_pixels ON examples (label, held_out) WHERE pixels IS NOT NULL;
CREATE TABLE IF NOT EXISTS counts (label INTEGER PRIMARY KEY, examples INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON examples BEGIN {added}; END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON examples BEGIN {removed}; END;
CREATE TRIGGER IF NOT EXISTS changed AFTER UPDATE OF label ON examples BEGIN {removed}; {added}; END;
CREATE TABLE IF NOT EXISTS deleted (digest BLOB PRIMARY KEY);
CREATE TABLE IF NOT EXISTS deleted_ids (id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS history (number INTEGER PRIMARY KEY, status TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS log (
    position INTEGER PRIMARY KEY AUTOINCREMENT, request INTEGER NOT NULL, kind TEXT NOT NULL,
    example INTEGER, label INTEGER, digest BLOB);
"""
COUNTS = {  # the table of counts has 0 for no label
    "added": "INSERT INTO counts VALUES (IFNULL(NEW.label, 0), 1) ON CONFLICT DO UPDATE SET examples = examples + 1",
    "removed": "UPDATE counts SET examples = examples - 1 WHERE label = IFNULL(OLD.label, 0)",
}
DAMAGED_IMAGE = "pixels IS NOT NULL AND digest != pixel_digest(pixels)"
UNKNOWN_LABEL = "label NOT NULL AND label NOT IN (SELECT number FROM classes)"
UNLABELLED = "label IS NULL AND pixels IS NOT NULL"
HELD_OUT = "held_out AND label IS NOT NULL AND pixels IS NOT NULL"
MAX_HELD_OUT = 20  # images kept per class
MAX_HISTORY = 400  # statuses

Event = tuple[int, str, dict[str, Any]]  # number, kind (`status` or `notice`), content


class Entry(NamedTuple):
    """A log entry. `kind`: class, example, label, delete or remove; `label`: the number of the class."""

    position: int
    request: int  # entries of one request have the same number
    kind: str
    example: int | None
    label: int | None
    digest: bytes | None  # of the example's pixels
    pixels: bytes | None  # None: not an example, or a deleted one
    held_out: bool


class Example(NamedTuple):
    number: int
    time: float
    digest: bytes
    pixels: bytes | None  # None: deleted by `prune`
    name: str | None  # of its class
    held_out: bool


class Journal:
    """One instance per process; safe to use from several threads."""

    def __init__(self, file: Path, options: Options) -> None:
        self.options = options
        self.lock = threading.RLock()
        self.noted = file.with_name(f"{file.name}-written")  # how often the journal was written, which SQLite forgets
        self.database = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
            self.database.execute(f"PRAGMA {pragma}")
        self.database.executescript(SCHEMA.format(**COUNTS))
        self.database.create_function("pixel_digest", 1, pixel_digest, deterministic=True)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Atomic, and on disk when the block ends."""
        with self.lock:
            with self.database:
                self.database.execute("BEGIN IMMEDIATE")
                self.request = self.last_position() + 1  # numbered by the position of its first entry
                yield
                written = self.times_written() + 1
                self.execute("INSERT OR REPLACE INTO notes VALUES ('written', ?)", written)
            self.note(written)

    def times_written(self) -> int:
        return self.value("SELECT value FROM notes WHERE name = 'written'") or 0

    def note(self, written: int) -> None:
        """In place, so that it succeeds on a full disk; a power failure may undo it, which makes no difference."""
        with suppress(OSError):
            handle = os.open(self.noted, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.write(handle, f"{written:020}".encode())
            finally:
                os.close(handle)

    def lost(self) -> int:
        """How many of the latest writes are lost: SQLite ignores a write-ahead log from its first damage on."""
        with suppress(OSError, ValueError):
            return max(0, int(self.noted.read_text()) - self.times_written())
        return 0

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
            for name in names:
                self.check_new(name)
                self.create_class(name)
            return self.last_position()

    def rename_class(self, number: int, name: str) -> None:
        with self.transaction():
            if self.class_name(number) != name:
                self.check_new(name)
                self.execute("UPDATE classes SET name = ? WHERE number = ?", name, number)

    def remove_class(self, number: int) -> int:
        """Remove a class, and delete its examples as `delete` does."""
        with self.transaction():
            self.class_name(number)  # raises RequestError if there is none
            self.execute("INSERT OR IGNORE INTO deleted SELECT digest FROM examples WHERE label = ?", number)
            self.execute("INSERT INTO deleted_ids SELECT id FROM examples WHERE label = ?", number)
            self.execute("DELETE FROM examples WHERE label = ?", number)
            self.execute("DELETE FROM counts WHERE label = ?", number)
            self.execute("DELETE FROM log WHERE label = ?", number)
            self.execute("DELETE FROM classes WHERE number = ?", number)
            return self.append("remove", label=number)

    def add_examples(
        self, ids: Sequence[str], images: Iterable[np.ndarray], names: Sequence[str | None], new_class: bool
    ) -> tuple[int, list[bool]]:
        """Store images with the names of their classes. Also returns which of them were duplicates.

        An existing id with the same image and label is a duplicate and not stored again; with others it is a conflict.
        """
        with self.transaction():
            labels = {name: self.label_of(name, new_class) for name in dict.fromkeys(names)}
            duplicates = [self.add_example(*row) for row in zip(ids, images, map(labels.get, names), strict=True)]
            return self.last_position(), duplicates

    def add_example(self, id: str, image: np.ndarray, label: int | None) -> bool:
        pixels = image.tobytes()
        digest = pixel_digest(pixels)
        if existing := self.execute("SELECT digest, label FROM examples WHERE id = ?", id):
            if existing[0][0] != digest or label not in (None, existing[0][1]):
                message = f"id {id!r} exists with another image or label; use another id, or PUT its label"
                raise RequestError(409, message)
            return True
        held_out, position = is_held_out(digest, self.options.held_out_every), self.last_position() + 1
        query = "INSERT INTO examples (id, time, digest, pixels, label, labelled, held_out) VALUES (?,?,?,?,?,?,?)"
        values = (id, time.time(), digest, pixels, label, position, held_out)
        self.append("example", self.value(f"{query} RETURNING number", *values), label)
        self.execute("DELETE FROM deleted_ids WHERE id = ?", id)
        return False

    def set_label(self, id: str, name: str, new_class: bool) -> int:
        with self.transaction():
            example = self.example(id)
            if example.name == name:
                return self.last_position()
            if example.pixels is None:
                raise RequestError(409, f"the image of {id!r} is no longer stored; post it again with its label")
            label = self.label_of(name, new_class)
            position = self.last_position() + 1
            self.execute("UPDATE examples SET label = ?, labelled = ? WHERE id = ?", label, position, id)
            return self.append("label", example.number, label)

    def delete(self, id: str) -> int:
        """Delete an example, except its id; the learner removes it from the memory when it reads the entry."""
        with self.transaction():
            digest = self.example(id).digest
            self.execute("DELETE FROM examples WHERE id = ?", id)
            self.execute("INSERT OR IGNORE INTO deleted VALUES (?)", digest)
            self.execute("INSERT INTO deleted_ids VALUES (?)", id)
            return self.append("delete", digest=digest)

    # Helpers, called within a transaction

    def append(
        self, kind: str, example: int | None = None, label: int | None = None, digest: bytes | None = None
    ) -> int:
        query = "INSERT INTO log (request, kind, example, label, digest) VALUES (?, ?, ?, ?, ?) RETURNING position"
        return self.value(query, self.request, kind, example, label, digest)

    def create_class(self, name: str) -> int:
        most = self.options.most_classes
        if self.value("SELECT COUNT(*) FROM classes") >= most:
            raise RequestError(409, f"the limit of {most} classes is reached (--most-classes)")
        number = self.value("INSERT INTO classes (name) VALUES (?) RETURNING number", name)
        self.append("class", label=number)
        return number

    def check_new(self, name: str) -> None:
        if self.class_number(name) is not None:
            raise RequestError(409, f"class {name!r} already exists")

    def label_of(self, name: str | None, create: bool) -> int | None:
        """The number of a class; None without a name."""
        number = self.class_number(name)
        if name is None or number is not None:
            return number
        if not create:
            raise RequestError(409, f"class {name!r} does not exist; add it, or send new_class=true")
        return self.create_class(name)

    def class_number(self, name: str | None) -> int | None:
        return self.value("SELECT number FROM classes WHERE name = ?", name)

    def class_name(self, number: int) -> str:
        if (name := self.value("SELECT name FROM classes WHERE number = ?", number)) is None:
            raise RequestError(404, f"class {number} does not exist")
        return name

    # Queries

    def classes(self) -> dict[int, str]:
        """The names by number."""
        return dict(self.execute("SELECT number, name FROM classes ORDER BY number"))

    def counts(self) -> dict[int | None, int]:
        """Number of examples by label."""
        return dict(self.execute("SELECT NULLIF(label, 0), examples FROM counts"))

    def held_out_counts(self) -> dict[int, int]:
        """Number of held-out examples by label."""
        query = "SELECT label, COUNT(*) FROM examples WHERE held_out AND label IS NOT NULL GROUP BY label"
        return dict(self.execute(query))

    def waiting_counts(self, position: int) -> dict[int, int]:
        """Number of examples by label that a learner at this position has still to learn."""
        query = """SELECT examples.label, COUNT(DISTINCT number) FROM log JOIN examples ON number = example
            WHERE position > ? AND NOT held_out AND examples.label IS NOT NULL GROUP BY examples.label"""
        return dict(self.execute(query, position))

    def examples_of(self, label: int, position: int, most: int) -> list[tuple[str, bool, bool]]:
        """Of the examples with stored images, those labelled last: id, held out, not read by a learner there."""
        query = """SELECT id, held_out, number IN (SELECT example FROM log WHERE position > ?)
            FROM examples WHERE label = ? AND pixels IS NOT NULL ORDER BY labelled DESC LIMIT ?"""
        return [(id, bool(held), bool(late)) for id, held, late in self.execute(query, position, label, most)]

    def example(self, id: str) -> Example:
        rows = self.execute(
            """SELECT examples.number, time, digest, pixels, name, held_out
            FROM examples LEFT JOIN classes ON classes.number = label WHERE id = ?""", id
        )  # fmt: skip
        if rows:
            return Example(*rows[0])
        if self.execute("SELECT id FROM deleted_ids WHERE id = ?", id):
            raise RequestError(410, f"example {id!r} was deleted")
        raise RequestError(404, f"example {id!r} does not exist")

    def images(self, ids: Iterable[str]) -> dict[str, bytes]:
        """The pixels of examples by id, without those that are no longer stored."""
        query = "SELECT id, pixels FROM examples WHERE id = ? AND pixels IS NOT NULL"
        return dict(row for id in ids for row in self.execute(query, id))

    def examples_with(self, digests: Iterable[bytes]) -> list[tuple[str, str | None]]:
        """Id and class of the examples whose pixels have these digests, oldest first."""
        query = """SELECT examples.number, id, name
            FROM examples LEFT JOIN classes ON classes.number = label WHERE digest = ?"""
        return [row[1:] for row in sorted(row for digest in digests for row in self.execute(query, digest))]

    def newest_unlabelled(self, most: int) -> list[str]:
        query = f"SELECT id FROM examples WHERE {UNLABELLED} ORDER BY number DESC LIMIT ?"
        return [id for (id,) in self.execute(query, most)]

    def unlabelled(self, most: int) -> dict[int, tuple[str, bytes]]:
        """Id and digest by number, of the newest examples that have no label and would not be held out with one."""
        drawn = f"SELECT number, id, digest FROM examples WHERE {UNLABELLED} AND NOT held_out"
        return {
            number: (id, digest) for number, id, digest in self.execute(f"{drawn} ORDER BY number DESC LIMIT ?", most)
        }

    def last_position(self) -> int:
        return self.last_number("log")

    def received(self) -> int:
        """Number of examples ever received, including deleted ones."""
        return self.last_number("examples")

    def last_number(self, table: str) -> int:
        """The largest number ever assigned to a row of the table."""
        return self.value("SELECT seq FROM sqlite_sequence WHERE name = ?", table) or 0

    # For the learner process

    def adopt(self, names: Sequence[str]) -> list[int]:
        """The numbers of the classes of a model given by `--model`, which are added."""
        with self.transaction():
            for name in names:
                self.execute("INSERT OR IGNORE INTO classes (name) VALUES (?)", name)
            numbers = {name: number for number, name in self.classes().items()}
            return [numbers[name] for name in names]

    def current_labels(self, digests: Iterable[bytes]) -> dict[bytes, int | None]:
        """The labels of images, by the digests of their pixels, without those that did not come from the journal.

        Of several examples with the same pixels the one labelled last counts. None: deleted, or held out.
        """
        query = """SELECT CASE WHEN held_out THEN NULL ELSE label END FROM examples
            WHERE digest = ? AND label IS NOT NULL ORDER BY labelled DESC LIMIT 1"""
        labels: dict[bytes, int | None] = {}
        for digest in digests:
            rows = self.execute(query, digest) or self.execute("SELECT NULL FROM deleted WHERE digest = ?", digest)
            if rows:
                labels[digest] = rows[0][0]
        return labels

    def is_paused(self) -> bool:
        """Whether the background is paused, which outlives a restart."""
        return bool(self.value("SELECT value FROM notes WHERE name = 'paused'"))

    def set_paused(self, paused: bool) -> None:
        with self.transaction():
            self.execute("INSERT OR REPLACE INTO notes VALUES ('paused', ?)", int(paused))

    def entries_after(self, position: int, most: int) -> list[Entry]:
        query = """SELECT position, request, kind, example, log.label, COALESCE(log.digest, examples.digest),
            pixels, COALESCE(held_out, 0)
            FROM log LEFT JOIN examples ON number = example WHERE position > ? ORDER BY position LIMIT ?"""
        return [Entry(*row) for row in self.execute(query, position, most)]

    def held_out(self) -> list[tuple[int, int]]:
        """Number and label of the held-out examples."""
        return self.execute(f"SELECT number, label FROM examples WHERE {HELD_OUT} ORDER BY number")

    def pixels(self, numbers: Iterable[int]) -> dict[int, bytes]:
        """Of examples by number, without those that are no longer stored."""
        query = "SELECT number, pixels FROM examples WHERE number = ? AND pixels IS NOT NULL"
        return dict(row for number in numbers for row in self.execute(query, number))

    def sample_unlabelled(self, count: int) -> list[bytes]:
        """Pixels of random unlabelled examples, which are not held out."""
        drawn = f"SELECT number FROM examples WHERE {UNLABELLED} AND NOT held_out ORDER BY random() LIMIT ?"
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
            self.execute("INSERT OR REPLACE INTO notes VALUES ('pruned', ?)", position)
            for number, digest in self.execute(query, self.options.unlabelled_kept):
                if digest not in in_memory:
                    self.execute("UPDATE examples SET pixels = NULL WHERE number = ?", number)
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # until then deleted images are in the write-ahead log

    def classes_of(self, kind: str, position: int) -> list[int]:
        """The classes that the log adds (`class`) or removes (`remove`) after a position."""
        return [
            label for (label,) in self.execute("SELECT label FROM log WHERE position > ? AND kind = ?", position, kind)
        ]

    def newest_entry(self) -> int:
        """Its position, which is the last one unless all entries were pruned; 0: there is none."""
        return self.value("SELECT MAX(position) FROM log") or 0

    def first_position(self) -> int:
        """The least position of a model from which the log continues."""
        return self.value("SELECT value FROM notes WHERE name = 'pruned'") or 0

    # Damage

    def check(self) -> None:
        """Raises DatabaseError if the file is damaged, or its content does not fit together."""
        problem = self.value("PRAGMA quick_check(1)")
        if problem == "ok":
            images = self.value(f"SELECT COUNT(*) FROM examples WHERE {DAMAGED_IMAGE}")
            labels = self.value(f"SELECT COUNT(*) FROM examples WHERE {UNKNOWN_LABEL}")
            labels += self.value(f"SELECT COUNT(*) FROM log WHERE kind != 'remove' AND {UNKNOWN_LABEL}")
            problem = f"{images} images and {labels} labels" if images + labels else "ok"
        if problem == "ok" and (lost := self.lost()):
            problem = f"the last {lost} changes are lost"
        if problem != "ok":
            raise sqlite3.DatabaseError(" ".join(problem.split()))
        self.classes()  # whose names may be no text

    def copy_readable(self, damaged: sqlite3.Connection) -> None:
        """Fill this journal, which is new, with the rows before and after the damaged pages of each table."""
        tables = ("classes", "examples", "deleted", "deleted_ids", "notes", "history", "log", "sqlite_sequence")
        with self.transaction():
            for table in tables:
                self.execute(f"DELETE FROM {table}")  # sqlite_sequence has rows by now
                for row in readable_rows(damaged, table):
                    places = ", ".join("?" * len(row))
                    self.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", *row)

    def mend(self) -> tuple[int, int]:
        """Forget damaged images, and give classes that have no name one of their number. Returns how many there are."""
        labels = "SELECT label FROM examples UNION SELECT label FROM log WHERE kind != 'remove'"
        images = f"UPDATE examples SET pixels = NULL WHERE {DAMAGED_IMAGE} RETURNING 1"
        names = f"INSERT INTO classes SELECT label, 'class ' || label FROM ({labels}) WHERE {UNKNOWN_LABEL} RETURNING 1"
        with self.transaction():
            return len(self.execute(images)), len(self.execute(names))

    def learn_again(self, learned: Collection[bytes]) -> None:
        """Replace the log by all labelled examples whose images are stored, except those with some digests."""
        with self.transaction():
            self.execute("DELETE FROM log")
            stored = "label NOT NULL AND pixels NOT NULL"
            query = f"SELECT number, label, digest FROM examples WHERE {stored} ORDER BY labelled"
            for number, label, digest in self.execute(query):
                if digest not in learned:
                    self.append("example", number, label)

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
        rows = self.execute("SELECT * FROM history WHERE json_valid(status) ORDER BY number")
        return [(number, "status", json.loads(text)) for number, text in rows]


def readable_rows(database: sqlite3.Connection, table: str) -> Iterable[tuple[Any, ...]]:
    rows: dict[int, tuple[Any, ...]] = {}
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.DatabaseError):
            for number, *row in database.execute(f"SELECT rowid, * FROM {table} NOT INDEXED ORDER BY rowid {order}"):
                if number in rows:
                    break
                rows[number] = tuple(row)
    return rows.values()
