"""How journal entries are learned: which ones together, and how the averaged weights follow."""

from collections.abc import Sequence
from itertools import takewhile

from torch import Tensor

from dualnet.learners.ema import WARM_UP
from dualnet.runs.model import Model
from dualnet.serve.journal import Entry
from dualnet.serve.options import Options

MAX_CATCH_UP_STEPS = 3  # after which an eighth of the old average is left


def next_batch(entries: Sequence[Entry], options: Options) -> list[Entry]:
    """The leading entries that are learned together; none if the first entry is not learned at all."""
    request, examples, batch = entries[0].request, set(), []
    for entry in takewhile(lambda entry: is_learned(entry, options), entries):
        other_request = options.synchronous and entry.request != request
        if other_request or entry.example in examples or len(batch) == options.batch_size:
            break
        examples.add(entry.example)
        batch.append(entry)
    return batch


def is_learned(entry: Entry, options: Options) -> bool:
    has_label = entry.name is not None or options.synchronous  # otherwise the background learns from the image
    return entry.kind in ("example", "label") and entry.pixels is not None and not entry.held_out and has_label


def catch_up(model: Model, images: Tensor, labels: Sequence[str | None]) -> None:
    """Move the averaged weights halfway to the current ones while a learned image is misclassified.

    At its usual rate the average needs about 20 background steps to follow, which is 10 seconds on one core.
    """
    average = model.learner.ema
    if average is None:
        return
    for _ in range(MAX_CATCH_UP_STEPS):
        predictions = model.predict(images, top=1)
        if all(label in (None, found.name) for label, found in zip(labels, predictions, strict=True)):
            return
        average.steps.fill_(WARM_UP)  # sets the rate to one half
        average.update(model.learner)
