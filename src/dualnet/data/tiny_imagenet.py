"""Split Tiny ImageNet (Stanford's CS231n): 200 classes of 64-pixel images, 20 tasks of ten."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualnet.data.benchmark import Benchmark, OrderSeed
from dualnet.data.class_folders import find_unpacked, images_in
from dualnet.data.file_benchmark import FileBenchmark, check_complete, make_split, read_rows

ARCHIVE = "tiny-imagenet-200"
NUM_CLASSES = 200
REMEDY = f"unpack {ARCHIVE}.zip: benchmark.root must hold wnids.txt, words.txt, train/ and val/"


@dataclass(frozen=True)
class TinyImageNet(FileBenchmark):
    """Classes are WordNet ids, sorted. Test images are those of `val`: the labels of `test` were never published."""

    root: str = "data/tiny-imagenet"  # contains tiny-imagenet-200, or is that folder; relative to the working directory
    classes_per_task: int = 10  # classes of each task
    class_order: list[str] | None = None  # the WordNet ids to use, in this order; None: all, sorted
    order_seed: OrderSeed = None  # shuffles the sorted ids; seed: as the seed of each run; None: not shuffled
    image_size: int = 64  # side in pixels of the images as stored

    def make(self) -> Benchmark:
        root = find_unpacked(self.root, ARCHIVE)
        all_ids = [columns[0] for _, columns in read_rows(os.path.join(root, "wnids.txt"), "\t", REMEDY)]
        check_complete(os.path.join(root, "wnids.txt"), all_ids, NUM_CLASSES)
        ids, tasks = self.choose(all_ids)
        names = _class_names(os.path.join(root, "words.txt"), ids)
        folders = {class_id: os.path.join(root, "train", class_id, "images") for class_id in ids}
        files = [(path, class_id, False) for class_id in sorted(ids) for path in images_in(folders[class_id], REMEDY)]
        tests = _test_images(os.path.join(root, "val"), set(all_ids))
        files += [(path, class_id, True) for path, class_id in tests.items() if class_id in folders]
        return self.decoded(make_split(files, ids, tasks, names), self.image_size)


def _class_names(path: str, ids: Sequence[str]) -> list[str]:
    """The first word for each class, followed by the id if two classes share it."""
    rows = read_rows(path, "\t", REMEDY)
    words = {columns[0]: columns[1].split(",")[0].strip() for _, columns in rows if len(columns) > 1}
    if missing := [class_id for class_id in ids if not words.get(class_id)]:
        raise ValueError(f"{path}: no word for {missing[0]}; unpack it again, or add a line `{missing[0]}<tab>word`")
    uses = Counter(words[class_id] for class_id in ids)
    return [words[class_id] if uses[words[class_id]] == 1 else f"{words[class_id]} ({class_id})" for class_id in ids]


def _test_images(folder: str, ids: set[str]) -> Mapping[str, str]:
    """The class ids by file, from val_annotations.txt."""
    images = os.path.join(folder, "images")
    existing = set(images_in(images, REMEDY))
    labels: dict[str, str] = {}
    for place, columns in read_rows(os.path.join(folder, "val_annotations.txt"), "\t", REMEDY):
        if len(columns) < 2 or columns[1] not in ids:
            raise ValueError(f"{place}: not `image<tab>id` with an id of wnids.txt; unpack it again")
        path = os.path.join(images, columns[0])
        if path not in existing:
            raise ValueError(f"{place}: {path} is missing; unpack the images there or remove the line")
        if path in labels:
            raise ValueError(f"{place}: {path} is named twice; remove a line")
        labels[path] = columns[1]
    return labels
