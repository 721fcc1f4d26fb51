"""Finding learners, objectives, memories, benchmarks and encoders by a registered name or by their import path."""

import importlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from dualnet.options import quote, suggest

Kind = TypeVar("Kind")


def find_class(name: str, known: Mapping[str, type[Kind]], base: type[Kind], option: str) -> type[Kind]:
    """The class that is registered by that name, or the one at an import path, such as `my_package.my_module.Mine`."""
    check_name(name, known, option)
    cls = known[name] if name in known else import_object(name, option)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(f"{option}: {name!r} is no {base.__name__}; see CONTRIBUTING.md")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise ValueError(f"{option}: {name!r} does not implement {', '.join(missing)}; see CONTRIBUTING.md")
    return cls


def check_name(name: str, known: Iterable[str], option: str) -> None:
    """Raises ValueError for an unknown name. An import path is not tried: reading options runs no code from outside."""
    if "." not in name and name not in (known := list(known)):
        words = f"{', '.join(known)}, nor an import path{suggest(name, known)}"
        raise ValueError(f"{option}: {quote(name)} is not one of {words}")


def import_object(path: str, option: str) -> Any:
    """The object at an import path. Errors name the option that gave the path."""
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # the last two: a path such as `..a.B`
        raise ValueError(f"{option}: cannot import {path!r} ({error}); is its folder on PYTHONPATH?") from error
    if not hasattr(module, name):
        hint = suggest(name, vars(module), module_name)
        raise ValueError(f"{option}: cannot import {path!r}: {module_name} has no {name}{hint}")
    return getattr(module, name)
