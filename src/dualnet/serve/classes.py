"""The classes of a model follow those of the journal, where each has a number that stays when its name changes."""

from collections.abc import Mapping, Sequence
from typing import Any

from dualnet.models.model import Model
from dualnet.serve.journal import Journal


def saved_numbers(model: Model, progress: Mapping[str, Any]) -> list[int]:
    """The numbers of a model's classes in the journal. Earlier versions saved none: all classes had 1, 2, 3, ..."""
    return progress.get("classes") or list(range(1, len(model.class_names) + 1))


def numbers(model: Model, journal: Journal) -> list[int]:
    """The numbers in the journal of a model's classes, which have the names of the journal."""
    by_name = {name: number for number, name in journal.classes_by_number().items()}
    return [by_name[name] for name in model.class_names]


def follow(model: Model, numbers: Sequence[int], journal: Journal) -> dict[str, str]:
    """Rename and remove classes of a model, which have these numbers, as the journal has.

    Returns the new names of the classes that remain, by the old ones.
    """
    current = journal.classes_by_number()
    names = {name: current.get(number) for name, number in zip(model.class_names, numbers, strict=True)}
    for name in [name for name, new in names.items() if new is None]:
        model.remove_class(name)
    kept = {name: new for name, new in names.items() if new is not None}
    model.class_names = tuple(kept.values())
    return kept
