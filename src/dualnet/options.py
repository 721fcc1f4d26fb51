"""Checks of options, for the `__post_init__` of a Config: one line that begins with the option's name."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints


def check_choices(config: Any) -> None:
    """Raises ValueError naming the first option whose value its type does not list."""
    for option, hint in get_type_hints(type(config)).items():
        if get_origin(hint) is Literal and getattr(config, option) not in get_args(hint):
            choices = ", ".join(map(str, get_args(hint)))
            raise ValueError(f"{option}: {getattr(config, option)!r} is not one of {choices}")


def check_at_least(config: Any, smallest: float, *options: str) -> None:
    """Raises ValueError naming the first of the options that is too small."""
    for option in options:
        if not getattr(config, option) >= smallest:
            raise ValueError(f"{option}: {getattr(config, option)} is not {smallest} or more")
