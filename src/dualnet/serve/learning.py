"""How entries of the journal are learned: which together, and that their answers are right at once."""

from collections.abc import Sequence
from itertools import takewhile

from torch import Tensor

from dualnet.learners.ema import WARM_UP
from dualnet.runs.model import Model
from dualnet.serve.journal import Entry
from dualnet.serve.options import Options

HALVES = 3  # then an eighth of the old average is left


def batch_of(entries: Sequence[Entry], options: Options) -> list[Entry]:
    """The first entries, as far as they are learned together."""
    request, examples, batch = entries[0].request, set(), []
    for entry in takewhile(lambda entry: is_to_learn(entry, options), entries):
        another = options.synchronous and entry.request != request
        if another or entry.example in examples or len(batch) == options.batch_size:
            break
        examples.add(entry.example)
        batch.append(entry)
    return batch


def is_to_learn(entry: Entry, options: Options) -> bool:
    known = entry.name is not None or options.synchronous  # otherwise the background learns from it
    return entry.kind in ("example", "label") and entry.pixels is not None and not entry.held_out and known


def catch_up(model: Model, images: Tensor, labels: Sequence[str | None]) -> None:
    """While a taught image is answered wrong: move the average halfway to the weights, and let it begin anew.

    At its usual rate it would follow within some 20 steps of the background, which are 10 seconds on one core.
    """
    average = model.learner.ema
    if average is None:
        return
    for _ in range(HALVES):
        answers = model.predict(images, top=1)
        if all(label in (None, answer.name) for label, answer in zip(labels, answers, strict=True)):
            return
        average.steps.fill_(WARM_UP)  # the rate is then a half
        average.update(model.learner)
