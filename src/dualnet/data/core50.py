"""CORe50 (Lomonaco and Maltoni, 2017): 50 objects filmed in 11 sessions, 10 tasks of five objects."""

import os
from dataclasses import dataclass, replace

from dualnet.data.benchmark import Benchmark, OrderSeed
from dualnet.data.class_folders import find_unpacked, images_in
from dualnet.data.file_benchmark import FileBenchmark, make_split

ARCHIVE = "core50_128x128"
SESSIONS = range(1, 12)
TEST_SESSIONS = (3, 7, 10)  # chosen by the authors of the data set
OBJECTS = [f"o{number}" for number in range(1, 51)]
CATEGORIES = ("plug_adapter", "mobile_phone", "scissor", "light_bulb", "can")
CATEGORIES += ("glass", "ball", "marker", "cup", "remote_control")
OBJECTS_PER_CATEGORY = 5
REMEDY = f"unpack {ARCHIVE}.zip: benchmark.root must hold the sessions s1 to s11 with the objects o1 to o50 in each"


@dataclass(frozen=True)
class Core50(FileBenchmark):
    """Classes are objects. Sessions 3, 7 and 10 are for testing: the same objects in other places."""

    root: str = "data/core50"  # contains core50_128x128, or is that folder; relative to the working directory
    classes_per_task: int = 5  # objects of each task; in order, five are one category
    class_order: list[str] | None = None  # the objects to use, such as o7, in this order; None: o1 to o50
    order_seed: OrderSeed = None  # shuffles o1 to o50; seed: as the seed of each run; None: not shuffled
    image_size: int = 128  # side in pixels of the images as stored
    input_size: int | None = 84  # side of the networks' input; None: as stored

    def make(self) -> Benchmark:
        in_order = self.class_order is None and self.order_seed is None  # sorted by name, o10 would follow o1
        objects, tasks = (replace(self, class_order=OBJECTS) if in_order else self).choose(OBJECTS)
        root = find_unpacked(self.root, ARCHIVE)
        listed = [name for name in OBJECTS if name in objects]  # in any order of classes the same image cache
        filmed = [(name, session, _frames(root, session, name)) for name in listed for session in SESSIONS]
        files = [(path, name, session in TEST_SESSIONS) for name, session, paths in filmed for path in paths]
        return self.decoded(make_split(files, objects, tasks, [_name(name) for name in objects]), self.image_size)


def _name(folder: str) -> str:
    """The name of an object in the data set's documentation.

    >>> _name("o1"), _name("o50")
    ('plug_adapter1', 'remote_control5')
    """
    category, index = divmod(int(folder[1:]) - 1, OBJECTS_PER_CATEGORY)
    return f"{CATEGORIES[category]}{index + 1}"


def _frames(root: str, session: int, name: str) -> list[str]:
    files = images_in(os.path.join(root, f"s{session}", name), REMEDY)
    start = f"C_{session:02d}_{int(name[1:]):02d}_"
    if others := [file for file in files if not os.path.basename(file).startswith(start)]:
        raise ValueError(f"{others[0]}: not one of {start}*.png; move it away, or {REMEDY}")
    return files
