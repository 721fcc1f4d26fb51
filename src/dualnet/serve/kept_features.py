"""The features of stored images by a frozen encoder, computed once and a few at a time: learning should not wait."""

from collections.abc import Collection, Mapping

from torch import Tensor

from dualnet.models.model import Model
from dualnet.serve.images import to_tensor
from dualnet.serve.journal import Journal
from dualnet.serve.serving_model import MAX_BATCH


class KeptFeatures:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.features: dict[int, Tensor] = {}  # float16 [features], by the number of the example

    def of(self, model: Model, numbers: Collection[int]) -> Mapping[int, Tensor] | None:
        """The features of these examples. None: there are more to compute; call it again."""
        self.features = {number: self.features[number] for number in numbers if number in self.features}
        missing = [number for number in numbers if number not in self.features]
        if images := self.journal.pixels(missing[:MAX_BATCH]):
            pixels = to_tensor([*images.values()]).to(model.learner.class_mask.device)
            self.features.update(zip(images, model.learner.features(pixels).cpu(), strict=True))
        return self.features if len(missing) <= MAX_BATCH else None
