"""How many held-out examples the model classifies correctly."""

from collections import defaultdict
from collections.abc import Collection, Mapping

import torch

from dualnet.models.model import Model
from dualnet.serve.images import to_tensor
from dualnet.serve.journal import Journal
from dualnet.serve.kept_features import KeptFeatures
from dualnet.serve.serving_model import predict

MIN_EXAMPLES = 10  # needed to measure a drop in accuracy

Results = Mapping[tuple[int, int], bool]  # whether held-out examples are classified correctly, by number and class


class HeldOutTest:
    """With a frozen encoder a test takes milliseconds once the features are known."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self.features = journal, KeptFeatures(journal)

    def run(self, model: Model) -> Results | None:
        """None: there are more features to compute, for which learning should not wait; run it again."""
        labels = {number: label for number, label in self.journal.held_out() if str(label) in model.class_names}
        names = self.names_by_features(model, labels) if model.keeps_examples else self.names(model, labels)
        if names is None:
            return None
        return {(number, labels[number]): name == str(labels[number]) for number, name in names.items()}

    def names(self, model: Model, numbers: Collection[int]) -> dict[int, str]:
        """The predicted classes, by number."""
        images = self.journal.pixels(numbers)
        predictions = predict(model, to_tensor([*images.values()]), top=1) if images else []
        return dict(zip(images, [prediction.name for prediction in predictions], strict=True))

    def names_by_features(self, model: Model, numbers: Collection[int]) -> dict[int, str] | None:
        features, head = self.features.of(model, numbers), model.learner.closed_form
        if features is None:
            return None
        if head is None or not features:
            return {}
        stacked = torch.stack([*features.values()]).to(model.learner.class_mask.device)
        answers: list[int] = head.logits(stacked).argmax(dim=1).tolist()
        return dict(zip(features, [model.class_names[answer] for answer in answers], strict=True))


def scores(results: Results) -> dict[int, tuple[int, int]]:
    """How many examples of a class are classified correctly, and how many there are."""
    by_class = defaultdict[int, list[bool]](list)
    for (_, label), is_correct in results.items():
        by_class[label].append(is_correct)
    return {label: (sum(correct), len(correct)) for label, correct in by_class.items()}


def accuracy_drop(before: Results, after: Results) -> float:
    """Percentage points lost on the examples measured both times; 0 if these are too few."""
    common = before.keys() & after.keys()
    if len(common) < MIN_EXAMPLES:
        return 0.0
    return 100 * sum(before[example] - after[example] for example in common) / len(common)
