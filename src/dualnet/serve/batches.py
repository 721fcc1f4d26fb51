"""Which entries of the journal are learned together."""

from collections.abc import Sequence
from itertools import takewhile

from dualnet.serve.journal import Entry
from dualnet.serve.options import Options


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
