"""What bounds the disk: which images the journal keeps, and which statuses, for the curves."""

import json
from collections.abc import Iterable
from typing import Any

from dualnet.serve.journal import HELD_OUT, UNLABELLED, Journal

HELD_OUT_KEPT = 20  # images of a class
STATUSES_KEPT = 400


def drop_images(journal: Journal, contained: int, remembered: Iterable[bytes], unlabelled_kept: int) -> None:
    """Drop the log up to a position, which all checkpoints contain, and the images that nobody needs any more.

    Needed are those of the rest of the log, those whose digests the memory holds, the newest ones without a label and
    the newest held-out ones of each class.
    """
    newest = f"""SELECT number FROM (SELECT number, ROW_NUMBER() OVER (PARTITION BY label ORDER BY number DESC)
        AS age FROM examples WHERE {HELD_OUT}) WHERE age <= {HELD_OUT_KEPT}"""
    needed = f"""SELECT example FROM log WHERE example IS NOT NULL UNION {newest}
        UNION SELECT number FROM (SELECT number FROM examples WHERE {UNLABELLED} ORDER BY number DESC LIMIT ?)"""
    with journal.transaction() as database:
        database.execute("CREATE TEMP TABLE IF NOT EXISTS remembered (digest BLOB PRIMARY KEY)")
        database.execute("DELETE FROM remembered")
        database.executemany("INSERT OR IGNORE INTO remembered VALUES (?)", ((digest,) for digest in remembered))
        database.execute("DELETE FROM log WHERE position <= ?", (contained,))
        database.execute(
            f"""UPDATE examples SET pixels = NULL WHERE pixels IS NOT NULL AND number NOT IN ({needed})
            AND digest NOT IN (SELECT digest FROM remembered)""",
            (unlabelled_kept,),
        )
    journal.rows("PRAGMA wal_checkpoint(TRUNCATE)")  # the write-ahead log holds what was deleted until then


def keep_status(journal: Journal, number: int, status: dict[str, Any]) -> None:
    """For the curves after a restart. If there are too many, every second one of the older half goes."""
    with journal.transaction() as database:
        database.execute("INSERT OR REPLACE INTO history VALUES (?, ?)", (number, json.dumps(status)))
        if database.execute("SELECT COUNT(*) FROM history").fetchone()[0] > STATUSES_KEPT:
            older = "SELECT number, ROW_NUMBER() OVER (ORDER BY number) AS place FROM history"
            unwanted = f"SELECT number FROM ({older}) WHERE place <= {STATUSES_KEPT // 2} AND place % 2 = 0"
            database.execute(f"DELETE FROM history WHERE number IN ({unwanted})")


def kept_statuses(journal: Journal) -> list[tuple[int, dict[str, Any]]]:
    """Oldest first, with their numbers."""
    return [(number, json.loads(text)) for number, text in journal.rows("SELECT * FROM history ORDER BY number")]
