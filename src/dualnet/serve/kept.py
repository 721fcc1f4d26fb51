"""What bounds the disk: which images the journal keeps, and which statuses, for the curves."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from dualnet.serve.journal import HELD_OUT, UNLABELLED, Journal

HELD_OUT_KEPT = 20  # images of a class
STATUSES_KEPT = 400

Event = tuple[int, str, dict[str, Any]]  # number, `status` or `notice`, what it tells


def drop_images(journal: Journal, contained: int, remembered: Iterable[bytes]) -> None:
    """Drop the log up to a position, which all checkpoints contain, and the images that nobody needs any more.

    Needed are those of the rest of the log, those whose digests the memory holds, the newest ones without a label and
    the newest held-out ones of each class.
    """
    newest = f"""SELECT number FROM (SELECT number, ROW_NUMBER() OVER (PARTITION BY label ORDER BY number DESC)
        AS age FROM examples WHERE {HELD_OUT}) WHERE age <= {HELD_OUT_KEPT}"""
    needed = f"""SELECT example FROM log WHERE example IS NOT NULL UNION {newest}
        UNION SELECT number FROM (SELECT number FROM examples WHERE {UNLABELLED} ORDER BY number DESC LIMIT ?)"""
    unneeded = f"pixels IS NOT NULL AND number NOT IN ({needed}) AND digest NOT IN (SELECT digest FROM remembered)"
    with journal.transaction():
        journal.rows("CREATE TEMP TABLE IF NOT EXISTS remembered (digest BLOB PRIMARY KEY)")
        journal.rows("DELETE FROM remembered")
        for digest in remembered:
            journal.rows("INSERT OR IGNORE INTO remembered VALUES (?)", digest)
        journal.rows("DELETE FROM log WHERE position <= ?", contained)
        journal.rows(f"UPDATE examples SET pixels = NULL WHERE {unneeded}", journal.options.unlabelled_kept)
    journal.rows("PRAGMA wal_checkpoint(TRUNCATE)")  # the write-ahead log holds what was deleted until then


def keep_status(journal: Journal, kept: Sequence[Event], event: Event) -> list[Event]:
    """What is kept, with another one. Of too many the one goes whose neighbours are closest in time."""
    events = [*kept, event]
    with journal.transaction():
        journal.rows("INSERT INTO history VALUES (?, ?)", event[0], json.dumps(event[2]))
        if len(events) > STATUSES_KEPT:
            times = [status["time"] for _, _, status in events]
            unwanted = min(range(1, len(events) - 1), key=lambda place: times[place + 1] - times[place - 1])
            journal.rows("DELETE FROM history WHERE number = ?", events.pop(unwanted)[0])
    return events


def kept_statuses(journal: Journal) -> list[Event]:
    """Oldest first."""
    rows = journal.rows("SELECT * FROM history ORDER BY number")
    return [(number, "status", json.loads(text)) for number, text in rows]
