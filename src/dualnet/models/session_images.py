"""The images of a session of `dualnet learn`: which are learned, in which order, and which are held out."""

import warnings
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualnet.data.decode import read_size
from dualnet.data.image_folder import ImageFiles, read_files
from dualnet.data.inputs import square_side
from dualnet.experiments.record import digest_of
from dualnet.models.held_out import pixel_digest
from dualnet.models.model import Model
from dualnet.models.session_plan import LearnOptions
from dualnet.stream.stream import shuffled
from dualnet.text import pluralise

SIZES_READ = 9  # files
EXACT_BATCH, BATCH = 100, 10  # images in a step of a model whose order of images has no effect, and of others


class SessionImages:
    """The training images, `files`, by row, and the test images."""

    def __init__(self, options: LearnOptions, model: Model) -> None:
        self.options, self.model = options, model
        self.seed, size = model.learner.generator.initial_seed(), square_side(model.learner.spec.image_shape)
        self.batch_size = options.batch_size or (EXACT_BATCH if model.keeps_examples else BATCH)
        self.test = None if options.test is None else read_files(options.test, None, size, options.on_error)
        self.files = read_files(options.train, options.unlabelled, size, options.on_error)

    @property
    def plan(self) -> str:
        """A digest of what the session does: equal for a session that continues another one."""
        options = {"batch_size": self.batch_size, "epochs": self.options.epochs, "task": self.options.task}
        return digest_of({**options, "images": self.files.digest, "test": self.test and self.test.digest})

    @cached_property
    def digests(self) -> list[bytes]:
        return digest_files(self.files)

    @cached_property
    def held_out(self) -> np.ndarray:
        """Which rows are held out, bool [N]; of unlabelled images too: their labels may come later."""
        if self.model.held_out.every == 0:
            return np.zeros(len(self.files), dtype=bool)
        return np.array([self.model.held_out.includes(digest) for digest in self.digests])

    def spare(self, classes: Collection[str]) -> None:
        """Hold out no class as a whole. To be called before `held_out` is read."""
        digests = {name: set[bytes]() for name in classes}
        for digest, name in zip(self.digests, self.files.names, strict=True):
            if name in digests:
                digests[name].add(digest)
        self.model.held_out = self.model.held_out.with_spared(digests.values())

    @property
    def learned(self) -> list[tuple[bytes, str | None]]:
        """Digest and class of the images that are learned."""
        rows = zip(self.digests, self.files.names, self.held_out, strict=True)
        return [(digest, name) for digest, name, held_out in rows if not held_out]

    @cached_property
    def batches(self) -> list[Tensor]:
        """The rows of each step, shuffled by the seed of the model; batches without labels are spread evenly."""
        labelled = torch.tensor([name is not None for name in self.files.names])
        learned = torch.from_numpy(~self.held_out)
        parts = [rows.nonzero().flatten() for rows in (labelled & learned, ~labelled & learned) if rows.any()]
        batches = []
        for epoch in range(self.options.epochs):
            orders = [rows[shuffled(len(rows), self.seed, 2 * epoch + part)] for part, rows in enumerate(parts)]
            batches += interleave(*(order.split(self.batch_size) for order in orders))
        return batches

    @property
    def photo_side(self) -> float:
        """The median of the shorter sides of some of the files, in pixels."""
        rows = range(0, len(self.files), -(-len(self.files) // SIZES_READ))
        return median(min(read_size(self.files.decoded.file(row))) for row in rows)

    def warn_of_ambiguous(self) -> None:
        """The same pixels in the folders of several classes: a mistake in the labels."""
        rows = defaultdict[bytes, dict[str, int]](dict)  # by digest: a row of each class
        for row, (digest, name) in enumerate(zip(self.digests, self.files.names, strict=True)):
            if name is not None:
                rows[digest].setdefault(name, row)
        if several := [[*classes.items()][:2] for classes in rows.values() if len(classes) > 1]:
            files = [
                Path(self.options.train, name, Path(self.files.decoded.file(row)).name) for name, row in several[0]
            ]
            which = f"{pluralise(len(several), 'image is', 'images are')} in the folders of several classes"
            warnings.warn(f"{which}, first {files[0]} and {files[1]}: keep each in one of them", stacklevel=2)

    def warn_of_learned_test_images(self) -> None:
        if self.test is None:
            return
        learned = {digest for digest, _ in self.learned}
        if rows := [row for row, digest in enumerate(digest_files(self.test)) if digest in learned]:
            first = Path(self.test.decoded.file(rows[0]))
            which = f"{len(rows)} of {pluralise(len(self.test), 'image')}, first {first.parent.name}/{first.name}"
            warnings.warn(f"--test: this session learns {which}; give other test images", stacklevel=2)


def digest_files(files: ImageFiles) -> list[bytes]:
    """Of the pixels of each row."""
    return [pixel_digest(files.decoded[row].tobytes()) for row in range(len(files))]


def interleave(*parts: Sequence[Any]) -> list[Any]:
    """All items, each sequence in its own order and spread evenly.

    >>> interleave("abcd", "12")
    ['a', '1', 'b', 'c', '2', 'd']
    """
    positions = [((number + 0.5) / len(part), item) for part in parts for number, item in enumerate(part)]
    return [item for _, item in sorted(positions, key=lambda pair: pair[0])]
