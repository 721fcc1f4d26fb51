"""Bounds the size of the journal: which images it keeps, and how many points of the status history."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from dualnet.serve.journal import HELD_OUT, UNLABELLED, Journal

MAX_HELD_OUT = 20  # images kept per class
MAX_HISTORY = 400  # statuses

Event = tuple[int, str, dict[str, Any]]  # number, kind (`status` or `notice`), content


def prune(journal: Journal, position: int, in_memory: Iterable[bytes]) -> None:
    """Delete log entries up to a position that all checkpoints include, and images that are no longer needed.

    Needed are the images of the remaining log entries, those in the memory (given by digest), the newest unlabelled
    ones and the newest held-out ones of each class.
    """
    newest_held_out = f"""SELECT number FROM (SELECT number, ROW_NUMBER() OVER (PARTITION BY label ORDER BY number DESC)
        AS age FROM examples WHERE {HELD_OUT}) WHERE age <= {MAX_HELD_OUT}"""
    needed = f"""SELECT example FROM log WHERE example IS NOT NULL UNION {newest_held_out}
        UNION SELECT number FROM (SELECT number FROM examples WHERE {UNLABELLED} ORDER BY number DESC LIMIT ?)"""
    unneeded = f"pixels IS NOT NULL AND number NOT IN ({needed}) AND digest NOT IN (SELECT digest FROM in_memory)"
    with journal.transaction():
        journal.rows("CREATE TEMP TABLE IF NOT EXISTS in_memory (digest BLOB PRIMARY KEY)")
        journal.rows("DELETE FROM in_memory")
        for digest in in_memory:
            journal.rows("INSERT OR IGNORE INTO in_memory VALUES (?)", digest)
        journal.rows("DELETE FROM log WHERE position <= ?", position)
        journal.rows(f"UPDATE examples SET pixels = NULL WHERE {unneeded}", journal.options.unlabelled_kept)
    journal.rows("PRAGMA wal_checkpoint(TRUNCATE)")  # until then deleted images are in the write-ahead log


def add_status(journal: Journal, history: Sequence[Event], event: Event) -> list[Event]:
    """The history with one more status. If it is full, the status whose neighbours are closest in time is dropped."""
    events = [*history, event]
    with journal.transaction():
        journal.rows("INSERT INTO history VALUES (?, ?)", event[0], json.dumps(event[2]))
        if len(events) > MAX_HISTORY:
            times = [status["time"] for _, _, status in events]
            dropped = min(range(1, len(events) - 1), key=lambda index: times[index + 1] - times[index - 1])
            journal.rows("DELETE FROM history WHERE number = ?", events.pop(dropped)[0])
    return events


def status_history(journal: Journal) -> list[Event]:
    """Oldest first."""
    rows = journal.rows("SELECT * FROM history ORDER BY number")
    return [(number, "status", json.loads(text)) for number, text in rows]
