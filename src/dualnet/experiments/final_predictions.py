"""Predictions of a finished run by class, as stored in classes.json. Nothing here imports PyTorch."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from dualnet.files import READ_ERRORS, describe_file_error, read_json
from dualnet.options import whole_number

CLASSES_FILE = "classes.json"
MAX_MISTAKES = 12
MAX_NAME_LENGTH, MAX_THUMBNAIL_LENGTH = 500, 20_000
BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True, slots=True)
class Mistake:
    truth: int  # class numbers
    answer: int
    probability: float  # of the answer
    image: str  # its folder and file; empty if the images are not files
    thumbnail: str  # a JPEG file in base64


@dataclass(frozen=True, slots=True)
class FinalPredictions:
    """Predictions for all test images after the last task; under task_aware, among the classes of the task."""

    counts: Sequence[int]  # test images of each class
    confusions: Mapping[tuple[int, int], int]  # number of images by class and wrong answer
    mistakes: Sequence[Mistake]  # the most confident ones

    def accuracies(self) -> list[float]:
        """Accuracy of each class in percent; NaN if it has no test images."""
        correct = list(self.counts)
        for (truth, _), count in self.confusions.items():
            correct[truth] -= count
        return [100 * right / count if count else math.nan for right, count in zip(correct, self.counts, strict=True)]

    def renumbered(self, numbers: Sequence[int]) -> Self:
        """The same results with other class numbers, `numbers[n]` for class n."""
        return replace(
            self,
            counts=[count for _, count in sorted(zip(numbers, self.counts, strict=True))],
            confusions={(numbers[truth], numbers[answer]): n for (truth, answer), n in self.confusions.items()},
            mistakes=[replace(m, truth=numbers[m.truth], answer=numbers[m.answer]) for m in self.mistakes],
        )

    def text(self) -> str:
        confusions = [[*pair, count] for pair, count in sorted(self.confusions.items())]
        content = {"counts": self.counts, "confusions": confusions, "mistakes": [*map(asdict, self.mistakes)]}
        return json.dumps(content, separators=(",", ":")) + "\n"


def read_final_predictions(path: Path, num_classes: int) -> FinalPredictions | None:
    """None if there is no file. Raises ValueError, one line, if it is damaged."""
    if not path.exists():
        return None
    try:
        content = read_json(path)
        counts = [whole_number(count, "counts", 0) for count in content["counts"]]
        if len(counts) != num_classes:
            raise ValueError(f"it has counts of {len(counts)} classes, and the run has {num_classes}")
        remaining, confusions = list(counts), {}
        for truth, answer, count in content["confusions"]:
            for number in (truth, answer):
                whole_number(number, "confusions", 0, num_classes - 1)
            confusions[truth, answer] = whole_number(count, "confusions", 0, remaining[truth])
            remaining[truth] -= count
        mistakes = [_mistake(mistake, num_classes) for mistake in content["mistakes"][:MAX_MISTAKES]]
        return FinalPredictions(counts, confusions, mistakes)
    except READ_ERRORS as error:
        raise ValueError(f"{describe_file_error(path, error)}; remove it, and the run is shown without it") from error


def _mistake(content: dict[str, Any], num_classes: int) -> Mistake:
    mistake = Mistake(**{field.name: content[field.name] for field in fields(Mistake)})
    for number in (mistake.truth, mistake.answer):
        whole_number(number, "mistakes", 0, num_classes - 1)
    if not 0 <= mistake.probability <= 1 or len(mistake.image) > MAX_NAME_LENGTH:
        raise ValueError("a mistake has an invalid probability or a name that is too long")
    if len(mistake.thumbnail) > MAX_THUMBNAIL_LENGTH or not BASE64.fullmatch(mistake.thumbnail):
        raise ValueError("a thumbnail is not a small image in base64")
    return mistake
