"""The tests of learners/test_contract.py, to be called for other learners and with other options."""

import inspect
import runpy
from pathlib import Path
from typing import Any

import pytest

from dualnet.learners import LEARNERS

TESTS = runpy.run_path(str(Path(__file__).parent / "learners" / "test_contract.py"))


def parametrizations(function: Any) -> list[tuple[Any, Any]]:
    return [mark.args for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]


def is_for_learners(function: Any) -> bool:
    return any(names == "name" and set(values) <= set(LEARNERS) for names, values in parametrizations(function))


FOR_LEARNERS = [name for name, function in TESTS.items() if name.startswith("test_") and is_for_learners(function)]


def first_values(function: Any) -> dict[str, Any]:
    """The first of the values that a test is parametrized with, for each of its arguments."""
    values: dict[str, Any] = {}
    for names, choices in parametrizations(function):
        names, first = ((names,), (choices[0],)) if isinstance(names, str) else (names, choices[0])
        values |= dict(zip(names, first, strict=True))
    return values


def holds(test: str, request: pytest.FixtureRequest, *, make: Any = None, **given: Any) -> None:
    """Call a test with these arguments. The others are fixtures, or the first value of a parametrization.

    `make` creates the learners, instead of the fixtures small_learner and quick_learner.
    """
    function = TESTS[test]
    makers = {} if make is None else {"small_learner": make, "quick_learner": make}
    known = first_values(function) | makers | given
    wanted = inspect.signature(function).parameters
    fixtures = [key for key, value in wanted.items() if key not in known and value.default is value.empty]
    function(
        **{key: value for key, value in known.items() if key in wanted},
        **{key: request.getfixturevalue(key) for key in fixtures},
    )
