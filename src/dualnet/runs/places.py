"""Folders of images: a resumed run may read them from another one if the images are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dualnet.data import Benchmark
from dualnet.runs.record import ROOTS

PROBED = 10  # images of each task, for training and for testing, whose pixels are compared


def elsewhere(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    """The first option, of two experiments by dotted names, that names another folder of images."""
    return next((root for root in ROOTS if not same_folder(there.get(root), asked.get(root))), None)


def same_folder(one: Any, other: Any) -> bool:
    """Whether two ways to write a folder mean the same one: `images`, `images/`, or from the root of the disk.

    >>> same_folder("images", "./images/"), same_folder("images", "other"), same_folder(None, "images")
    (True, False, False)
    """
    if one == other or None in (one, other):
        return one == other
    return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


def pixels_digest(benchmark: Benchmark) -> str:
    """Of some images of every task: files of the same names in two folders may hold different images."""
    digest = hashlib.blake2b(digest_size=8)
    for task in benchmark.tasks:
        for side in (task.train, task.test):
            some = np.linspace(0, len(side) - 1, min(len(side), PROBED)).astype(int)
            digest.update(np.ascontiguousarray(side.array[side.rows[some]]).tobytes())
    return digest.hexdigest()
