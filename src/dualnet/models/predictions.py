"""Predictions of a model, and how many of them are correct."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dualnet.text import pluralise


@dataclass(frozen=True)
class Prediction:
    """Class names with their probabilities, the most probable first; empty for an image that could not be read."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    unknown: bool = False  # whether the image is far from all classes
    error: str = ""  # why the image could not be read, with `on_error="skip"`

    @property
    def name(self) -> str:
        return "" if self.error else self.classes[0]

    @property
    def probability(self) -> float:
        return 0.0 if self.error else self.probabilities[0]


@dataclass(frozen=True)
class Evaluation:
    """Predictions for images whose classes are known. Shares are in percent.

    >>> cat, dog = (Prediction((name,), (p,)) for name, p in (("cat", 0.9), ("dog", 0.6)))
    >>> evaluation = Evaluation(("cat", "cat", "dog"), (cat, dog, dog))
    >>> evaluation
    Evaluation(2 of 3 images correct: 66.7 %)
    >>> evaluation.class_accuracies(), dict(evaluation.confusions()), evaluation.with_threshold(0.8)
    ({'cat': 50.0, 'dog': 100.0}, {('cat', 'dog'): 1}, (1, 1))
    """

    labels: Sequence[str]  # the class of each image
    predictions: Sequence[Prediction]

    def __repr__(self) -> str:
        return f"Evaluation({self.correct:,} of {pluralise(len(self.labels), 'image')} correct: {self.accuracy:.1f} %)"

    @property
    def correct(self) -> int:
        return self.with_threshold(0.0)[1]

    @property
    def accuracy(self) -> float:
        return 100 * self.correct / len(self.labels) if self.labels else math.nan

    @property
    def unknown(self) -> int:
        """The number of images that were refused, though their classes are known."""
        return sum(prediction.unknown for prediction in self.predictions)

    def class_accuracies(self) -> dict[str, float]:
        """The accuracy of each class that has images, by its name, sorted."""
        pairs, counts = Counter(self._pairs()), Counter(self.labels)
        return {name: 100 * pairs[name, name] / count for name, count in sorted(counts.items())}

    def confusions(self) -> Counter[tuple[str, str]]:
        """The number of wrong predictions, by class and predicted class."""
        return Counter((label, name) for label, name in self._pairs() if label != name)

    def with_threshold(self, least: float) -> tuple[int, int]:
        """The number of images whose prediction has at least this probability, and how many of them are correct."""
        pairs = zip(self.labels, self.predictions, strict=True)
        are_correct = [label == prediction.name for label, prediction in pairs if prediction.probability >= least]
        return len(are_correct), sum(are_correct)

    def _pairs(self) -> list[tuple[str, str]]:
        return [(label, prediction.name) for label, prediction in zip(self.labels, self.predictions, strict=True)]
