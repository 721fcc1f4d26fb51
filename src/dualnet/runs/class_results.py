"""What a run answered at its end, class by class, as classes.json holds it. Nothing here imports PyTorch."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dualnet.files import DAMAGES, because, read_json
from dualnet.options import whole

CLASSES_FILE = "classes.json"
MOST_MISTAKES = 12
LONGEST_NAME, LONGEST_THUMBNAIL = 500, 20_000  # characters
BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True, slots=True)
class Mistake:
    truth: int  # class numbers
    answer: int
    probability: float  # of the answer
    image: str  # its folder and file; empty where the images are no files
    thumbnail: str  # a JPEG file in base64


@dataclass(frozen=True, slots=True)
class ClassResults:
    """Answers to all test images after the last task; under the protocol task_aware, among the classes of the task."""

    counts: Sequence[int]  # test images of each class
    confusions: Mapping[tuple[int, int], int]  # images by class and wrong answer, where there are some
    mistakes: Sequence[Mistake]  # the most confident ones

    def accuracies(self) -> list[float]:
        """Of each class, in percent; NaN where it has no test image."""
        right = list(self.counts)
        for (truth, _), count in self.confusions.items():
            right[truth] -= count
        return [100 * some / count if count else math.nan for some, count in zip(right, self.counts, strict=True)]

    def text(self) -> str:
        confusions = [[*pair, count] for pair, count in sorted(self.confusions.items())]
        content = {"counts": self.counts, "confusions": confusions, "mistakes": [asdict(one) for one in self.mistakes]}
        return json.dumps(content, separators=(",", ":")) + "\n"


def read_class_results(path: Path, num_classes: int) -> ClassResults | None:
    """None where a run has none, as those of older versions. Raises ValueError, one line, if the file is damaged."""
    if not path.exists():
        return None
    try:
        content = read_json(path)
        counts = [whole(count, "counts", 0) for count in content["counts"]]
        if len(counts) != num_classes:
            raise ValueError(f"counts of {len(counts)} classes, where the run has {num_classes}")
        left, confusions = list(counts), {}
        for truth, answer, count in content["confusions"]:
            pair = whole(truth, "confusions", 0, num_classes - 1), whole(answer, "confusions", 0, num_classes - 1)
            confusions[pair] = whole(count, "confusions", 0, left[truth])
            left[truth] -= count
        mistakes = [_mistake(one, num_classes) for one in content["mistakes"][:MOST_MISTAKES]]
        return ClassResults(counts, confusions, mistakes)
    except DAMAGES as error:
        raise ValueError(f"{because(path, error)}; remove it: the rest of the run is shown without it") from error


def _mistake(content: dict[str, Any], num_classes: int) -> Mistake:
    mistake = Mistake(**{field.name: content[field.name] for field in fields(Mistake)})
    for number in (mistake.truth, mistake.answer):
        whole(number, "mistakes", 0, num_classes - 1)
    if not 0 <= mistake.probability <= 1 or len(mistake.image) > LONGEST_NAME:
        raise ValueError("a mistake has no probability, or too long a name")
    if len(mistake.thumbnail) > LONGEST_THUMBNAIL or not BASE64.fullmatch(mistake.thumbnail):
        raise ValueError("a thumbnail is not a small image in base64")
    return mistake
