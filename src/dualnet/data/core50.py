"""CORe50 (Lomonaco and Maltoni, 2017): 50 objects filmed in 11 sessions, 10 tasks of five objects."""

import os
from dataclasses import dataclass
from itertools import chain

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.data.class_folders import entries, is_image, unpacked
from dualnet.data.image_cache import cached_images
from dualnet.data.splits import Split, benchmark_of, stream_order, tasks_of

ARCHIVE = "core50_128x128"
SESSIONS = range(1, 12)
TEST_SESSIONS = (3, 7, 10)  # as the data set's authors
OBJECTS = [f"o{number}" for number in range(1, 51)]
CATEGORIES = ("plug_adapter", "mobile_phone", "scissor", "light_bulb", "can")
CATEGORIES += ("glass", "ball", "marker", "cup", "remote_control")
OBJECTS_PER_CATEGORY = 5
REMEDY = f"unpack {ARCHIVE}.zip: benchmark.root must hold the sessions s1 to s11 with the objects o1 to o50 in each"


@dataclass(frozen=True)
class Core50(BenchmarkConfig):
    """Classes are objects. Sessions 3, 7 and 10 are for testing: the same objects in other places."""

    root: str = "data/core50"  # folder of core50_128x128, or that folder itself; relative to the working directory
    classes_per_task: int = 5  # new objects in every task; in order, five are one category
    num_tasks: int | None = None  # None: as many as the objects make; fewer leaves the last objects out
    class_order: list[str] | None = None  # the objects to use, such as o7, in order of the stream; None: o1 to o50
    order_seed: int | None = None  # shuffles o1 to o50; None: leaves them in order
    image_size: int = 128  # side in pixels of the images as stored
    input_size: int | None = 84  # side that the networks see; None: as stored
    cache: str | None = None  # folder of decoded images; None: $DUALNET_CACHE or ~/.cache/dualnet

    def make(self) -> Benchmark:
        objects = self._objects()
        tasks = tasks_of(len(objects), self.classes_per_task, self.num_tasks)
        objects = objects[: tasks[-1].stop]
        root = unpacked(self.root, ARCHIVE)
        frames = [_frames(root, session, name) for name in objects for session in SESSIONS]
        files, counts = list(chain(*frames)), [len(some) for some in frames]
        labels = np.repeat(np.arange(len(frames)) // len(SESSIONS), counts)
        is_test = np.repeat(np.isin(np.tile(SESSIONS, len(objects)), TEST_SESSIONS), counts)
        split = Split(labels, is_test, [_name(name) for name in objects], tasks, files)
        return benchmark_of(cached_images(files, self.image_size, self.cache), split, self.input_size)

    def _objects(self) -> list[str]:
        in_order = self.class_order is None and self.order_seed is None
        return stream_order(OBJECTS, OBJECTS if in_order else self.class_order, self.order_seed)


def _name(folder: str) -> str:
    """The data set's own names.

    >>> _name("o1"), _name("o50")
    ('plug_adapter1', 'remote_control5')
    """
    category, index = divmod(int(folder[1:]) - 1, OBJECTS_PER_CATEGORY)
    return f"{CATEGORIES[category]}{index + 1}"


def _frames(root: str, session: int, name: str) -> list[str]:
    """Files of an object in a session."""
    folder = os.path.join(root, f"s{session}", name)
    start = f"C_{session:02d}_{int(name[1:]):02d}_"
    names = sorted(entry.name for entry in entries(folder, REMEDY) if is_image(entry.name))
    if not names:
        raise ValueError(f"{folder}: no images {start}*.png; {REMEDY}")
    if strange := [name for name in names if not name.startswith(start)]:
        raise ValueError(f"{os.path.join(folder, strange[0])}: not one of {start}*.png; move it away, or {REMEDY}")
    return [os.path.join(folder, name) for name in names]
