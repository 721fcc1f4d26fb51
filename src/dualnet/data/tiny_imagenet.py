"""Split Tiny ImageNet (Stanford's CS231n): 200 classes of 64-pixel images, 20 tasks of ten."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.data.class_folders import entries, images_by_class, unpacked
from dualnet.data.image_cache import cached_images
from dualnet.data.splits import Split, benchmark_of, stream_order, tasks_of

ARCHIVE = "tiny-imagenet-200"
NUM_CLASSES = 200
LARGEST_LIST = 100_000_000  # bytes
REMEDY = f"unpack {ARCHIVE}.zip: benchmark.root must hold wnids.txt, words.txt, train/ and val/"


@dataclass(frozen=True)
class TinyImageNet(BenchmarkConfig):
    """Classes are WordNet ids, in their order. Test images are those of `val`: the labels of `test` were never told."""

    root: str = "data/tiny-imagenet"  # from the working directory: holds tiny-imagenet-200, or is that folder itself
    classes_per_task: int = 10  # new classes in every task
    num_tasks: int | None = None  # None: as many as the classes make; fewer leaves the last classes out
    class_order: list[str] | None = None  # the WordNet ids to use, in order of the stream; None: all, sorted
    order_seed: int | None = None  # shuffles the sorted ids; None: leaves them sorted
    image_size: int = 64  # side in pixels of the images as stored
    input_size: int | None = None  # side that the networks see; None: as stored
    cache: str | None = None  # folder of decoded images; None: $DUALNET_CACHE or ~/.cache/dualnet

    def make(self) -> Benchmark:
        root = unpacked(self.root, ARCHIVE)
        all_ids = _class_ids(os.path.join(root, "wnids.txt"))
        ids = stream_order(all_ids, self.class_order, self.order_seed)
        tasks = tasks_of(len(ids), self.classes_per_task, self.num_tasks)
        ids = ids[: tasks[-1].stop]
        names = _class_names(os.path.join(root, "words.txt"), ids)
        files, labels = images_by_class([os.path.join(root, "train", class_id, "images") for class_id in ids])
        numbers = {class_id: number for number, class_id in enumerate(ids)}
        tests = _test_images(os.path.join(root, "val"), set(all_ids))
        tests = {file: numbers[class_id] for file, class_id in tests.items() if class_id in numbers}
        is_test = np.repeat([False, True], [len(files), len(tests)])
        files, labels = [*files, *tests], np.array([*labels, *tests.values()], np.int64)
        split = Split(labels, is_test, names, tasks, files)
        return benchmark_of(cached_images(files, self.image_size, self.cache), split, self.input_size)


def _lines(path: str) -> Iterator[tuple[str, list[str]]]:
    """Where a line is, for messages, and its columns; blank lines are left out."""
    from dualnet.files import read_text, reason  # not at the top: it loads PyYAML

    try:
        text = read_text(Path(path), LARGEST_LIST)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({reason(error)}); {REMEDY}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield f"{path}, line {number}", line.strip().split("\t")


def _class_ids(path: str) -> list[str]:
    ids = [columns[0] for _, columns in _lines(path)]
    if len(set(ids)) != NUM_CLASSES or len(ids) != NUM_CLASSES:
        raise ValueError(
            f"{path}: {len(ids)} ids, {len(set(ids))} of them different, where {NUM_CLASSES} should be; "
            "unpack it anew, or use image_folder for classes of your own"
        )
    return ids


def _class_names(path: str, ids: Sequence[str]) -> list[str]:
    """The first word for each class; with the id where two classes share it."""
    words = {columns[0]: columns[1].split(",")[0].strip() for _, columns in _lines(path) if len(columns) > 1}
    if missing := [class_id for class_id in ids if not words.get(class_id)]:
        raise ValueError(f"{path}: no word for {missing[0]}; unpack it anew, or add a line `{missing[0]}<tab>word`")
    uses = Counter(words[class_id] for class_id in ids)
    return [words[class_id] if uses[words[class_id]] == 1 else f"{words[class_id]} ({class_id})" for class_id in ids]


def _test_images(folder: str, ids: set[str]) -> Mapping[str, str]:
    """The class ids of the files that val_annotations.txt names."""
    images = os.path.join(folder, "images")
    there = {entry.name for entry in entries(images, REMEDY)}
    found: dict[str, str] = {}
    for place, columns in _lines(os.path.join(folder, "val_annotations.txt")):
        if len(columns) < 2 or columns[1] not in ids:
            raise ValueError(f"{place}: not `image<tab>id` with an id of wnids.txt; unpack it anew")
        path = os.path.join(images, columns[0])
        if columns[0] not in there:
            raise ValueError(f"{place}: {path} is missing; unpack the images there or remove the line")
        if path in found:
            raise ValueError(f"{place}: {path} is named twice; remove a line")
        found[path] = columns[1]
    return found
