"""Options: conversion of plain values or text to typed dataclasses, and checks that Configs share.

Every error is a ValueError of one line that starts with the dotted name of the option.
"""

import dataclasses
import difflib
import functools
import json
import math
import re
import reprlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import MISSING
from numbers import Integral
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

Config = TypeVar("Config")
SHOWN = 80  # characters of a value in a message
BY_SEED = "seed"  # an option with this value has the seed of the run as its value
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def build(kind: type[Config], options: Any, prefix: str = "") -> Config:
    """A dataclass from a mapping of options, nested if fields are dataclasses; text is converted to their types."""
    if not isinstance(options, Mapping):
        raise ValueError(f"{prefix}: a section of options is needed, not {quote(options)}")
    types = field_types(kind)
    check_keys(options, option_names(kind), prefix)
    for field in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        if field.name not in options and field.default is MISSING and field.default_factory is MISSING and field.init:
            raise ValueError(f"{join(prefix, field.name)}: missing, and has no default; give it a value")
    values = {name: convert(value, types[name], join(prefix, name)) for name, value in options.items()}
    try:
        return kind(**values)
    except (ValueError, TypeError, ArithmeticError) as error:  # from its __post_init__, which does not know the prefix
        message = str(error).removeprefix(f"{prefix.rpartition('.')[2]}.")
        names_option = re.split(r"\W", message, maxsplit=1)[0] in types
        raise ValueError(join(prefix, message) if names_option or not prefix else f"{prefix}: {message}") from error


type_hints = functools.cache(get_type_hints)  # evaluating them takes most of the time of a Config


def field_types(kind: Any) -> dict[str, Any]:
    hints = type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def option_names(kind: Any, prefix: str = "") -> list[str]:
    """The names of the options of a dataclass, then the dotted names of those in its sections."""
    types = field_types(kind)
    sections = {name: hint for name, hint in types.items() if dataclasses.is_dataclass(hint)}
    nested = [name for section, hint in sections.items() for name in option_names(hint, join(prefix, section))]
    return [*(join(prefix, name) for name in types), *nested]


def join(prefix: str, name: Any) -> str:
    """The dotted name of an option in a section."""
    return f"{prefix}.{name}" if prefix else str(name)


def convert(value: Any, hint: Any, option: str) -> Any:
    """The value converted to a type: text is parsed, an integer may become a float, a list a tuple."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return convert_union(value, get_args(hint), option)
    if kind is Any:
        return from_json(value) if isinstance(value, str) else value
    if kind is NoneType and (value is None or value in ("null", "~")):
        return None
    if value is None:
        raise ValueError(f"{option}: has no value; give one, or leave it out for the default")
    if dataclasses.is_dataclass(kind):
        return value if isinstance(value, kind) else build(kind, value, option)
    if kind is Literal:
        return choose(value, get_args(hint), option)
    if kind in (list, tuple, Sequence):
        return convert_list(value, kind, get_args(hint) or (Any, ...), option)
    if kind is dict:
        items = from_yaml(value, "{", option)
        items = items if isinstance(items, Mapping) else refuse("a mapping", value, option)
        return {str(key): convert(item, get_args(hint)[1], join(option, key)) for key, item in items.items()}
    if kind in SCALARS:
        return convert_scalar(value, kind, option)
    return value if isinstance(kind, type) and isinstance(value, kind) else refuse(f"a value of {kind}", value, option)


def convert_union(value: Any, kinds: Sequence[Any], option: str) -> Any:
    """Converted by the first type that accepts the value. None and, unless it is text, its own type come first."""
    errors = []
    for kind in sorted(kinds, key=lambda kind: kind is not NoneType and (kind is str or kind is not type(value))):
        try:
            return convert(value, kind, option)
        except ValueError as error:
            errors += [error] if kind is not NoneType else []
    raise next((error for error in errors if "did you mean" in str(error)), errors[-1])


def convert_list(value: Any, kind: Any, kinds: tuple[Any, ...], option: str) -> Any:
    items = from_yaml(value, "[", option)
    if not isinstance(items, (list, tuple)):
        remedy = f"; write [{value}], in quotes on a command line" if isinstance(value, str) and value else ""
        raise ValueError(f"{option}: a list is needed, not {quote(value)}{remedy[: 2 * SHOWN]}")
    if kind is not tuple:
        return [convert(item, kinds[0], option) for item in items]
    kinds = kinds[:1] * len(items) if kinds[-1] is ... else kinds
    if len(items) != len(kinds):
        raise ValueError(f"{option}: {len(kinds)} values are needed, not {quote(value)}")
    return tuple(convert(item, kind, option) for item, kind in zip(items, kinds, strict=True))


def from_yaml(value: Any, opening: str, option: str) -> Any:
    """A list or mapping in YAML's flow style, with its items as text; any other value unchanged."""
    if not isinstance(value, str) or not value.strip().startswith(opening):
        return value
    import yaml  # only if needed: loading it takes time

    try:
        return yaml.load(value, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{option}: cannot be read as YAML: {quote(value)}") from error


def from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def choose(value: Any, choices: Sequence[Any], option: str) -> Any:
    """The choice that the value is, or whose text it is. Raises ValueError if there is none."""
    for choice in choices:
        if value == str(choice) or (value == choice and type(value) is type(choice)):
            return choice
    words = [str(choice) for choice in choices]
    raise ValueError(f"{option}: {quote(value)} is not one of {', '.join(words)}{suggest(str(value), words)}")


def convert_scalar(value: Any, kind: Any, option: str) -> Any:
    wanted, read, fits = SCALARS[kind]
    try:
        converted = read(value) if isinstance(value, str) or (kind is float and type(value) is int) else value
    except (ValueError, KeyError, OverflowError):
        converted = None
    return converted if type(converted) is kind and fits(converted) else refuse(wanted, value, option)


SCALARS: dict[Any, tuple[str, Callable[[Any], Any], Callable[[Any], bool]]] = {  # name, parser, check
    int: ("a whole number of 64 bits", lambda text: int(text, 16 if "0x" in text else 10), lambda n: abs(n) < 2**63),
    float: ("a finite number", float, math.isfinite),
    bool: ("true or false", lambda text: BOOLEANS[text.lower()], lambda _: True),
    str: ("text without NUL", str, lambda text: "\0" not in text),
}


def refuse(wanted: str, value: Any, option: str) -> NoReturn:
    raise ValueError(f"{option}: {wanted} is needed, not {quote(value)}")


def quote(value: Any) -> str:
    """A value for messages, truncated if it is long."""
    text = repr(value) if isinstance(value, str) else reprlib.repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def check_keys(options: Mapping[str, Any], valid: Iterable[str], prefix: str = "") -> None:
    """Raises ValueError for the first invalid key, with the nearest valid one, which may be in a section (`a.b`)."""
    by_last_part = {name.rpartition(".")[2]: name for name in reversed([*valid])}
    here = [name for name in valid if "." not in name]
    for key in options:
        if key not in here:
            near = difflib.get_close_matches(str(key)[:SHOWN], by_last_part, n=1, cutoff=0.5)
            known = ", ".join(here) or "none"
            hint = f"did you mean {join(prefix, by_last_part[near[0]])}?" if near else f"there are {known}"
            raise ValueError(f"{join(prefix, str(key)[:SHOWN])}: unknown option; {hint}")


def ending_in(names: Iterable[str], words: Container[str]) -> list[str]:
    """The dotted names whose last part is one of the words.

    >>> ending_in(["learner.lr", "learner.slow.lr", "learner.updates"], ["lr"])
    ['learner.lr', 'learner.slow.lr']
    """
    return [name for name in names if name.rpartition(".")[2] in words]


def check_absent(options: Mapping[str, Any], **reasons: str) -> None:
    """Raises ValueError for options that would be ignored, with the reason for each."""
    for key, reason in reasons.items():
        if key in options:
            raise ValueError(f"--{key}: {reason}")


def suggest(word: str, valid: Iterable[str], prefix: str = "") -> str:
    """A hint with the nearest valid word, or an empty string."""
    near = difflib.get_close_matches(word[:SHOWN], list(valid), n=1, cutoff=0.5)
    return f"; did you mean {join(prefix, near[0])}?" if near else ""


def parse_flags(words: Sequence[str]) -> dict[str, Any]:
    """The options of a command line as nested mappings, with values as text.

    >>> parse_flags(["--learner.slow.rounds", "10", "--batch_size=20"])
    {'learner': {'slow': {'rounds': '10'}}, 'batch_size': '20'}
    """
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise ValueError(f"{word}: an option starts with --, for example --learner.lr 0.1")
        option, equals, value = word[2:].partition("=")
        if not equals and (value := next(rest, None)) is None:
            raise ValueError(f"{word}: needs a value")
        options[option] = value
    return nest(options)


def parse_learner_flags(words: Sequence[str], flags: Iterable[str], names: Iterable[str]) -> dict[str, Any]:
    """The options of a learner on a command line. For unknown ones flags and dotted names are suggested."""
    options, flags = parse_flags(words), set(flags)
    dotted = ending_in(names, options.keys() - flags)
    check_keys(options, ["learner", *(flag.replace("_", "-") for flag in flags), *dotted])
    learner = options.get("learner", {})
    if not isinstance(learner, dict):
        raise ValueError(f"--learner: {learner!r} is not a group of options; use --learner.name to select a learner")
    return learner


def nest(options: Mapping[str, Any]) -> dict[str, Any]:
    """Nested options from dotted names: the inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for option, value in options.items():
        set_option(nested, option, value)
    return nested


def set_option(options: dict[str, Any], option: str, value: Any) -> None:
    """Set a dotted option in nested ones. Raises ValueError if a name is both a value and a section."""
    words = option.split(".")
    for depth, word in enumerate(words, 1):
        is_section = depth < len(words)
        if word in options and isinstance(options[word], dict) != is_section:
            both = f"--{'.'.join(words[:depth])}"
            remedy = f"leave one of them out (the name of a section is {both}.name)"
            raise ValueError(f"{both}: given as a value and as a section; {remedy}")
        if is_section:
            options = options.setdefault(word, {})
    options[words[-1]] = value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated with `over`, recursively.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merge(out[key], value) if both else value
    return out


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by their dotted names.

    >>> flatten({"a": {"x": 1}, "b": 2, "c": {}})
    {'a.x': 1, 'b': 2, 'c': {}}
    """
    out: dict[str, Any] = {}
    for key, value in mapping.items():
        nested = isinstance(value, Mapping) and value
        out |= flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return out


def shorten(names: Sequence[str]) -> list[str]:
    """Dotted names by their last parts: as few as tell each from the others.

    >>> shorten(["learner.lr", "slow.lr", "learner.updates"])
    ['learner.lr', 'slow.lr', 'updates']
    """

    def ending(name: str, count: int) -> str:
        return ".".join(name.split(".")[-count:])

    def is_unique(name: str, count: int) -> bool:
        return sum(ending(other, count) == ending(name, count) for other in names) == 1

    lengths = [next((n for n in range(1, name.count(".") + 1) if is_unique(name, n)), None) for name in names]
    return [name if length is None else ending(name, length) for name, length in zip(names, lengths, strict=True)]


def to_plain(value: Any) -> Any:
    """The value as JSON represents it, with tuples as lists, so that YAML and JSON preserve it."""
    return json.loads(json.dumps(value))


def check_fields(config: Any, **least: float) -> None:
    """Raises ValueError for the first value that is not in its Literal type, or is a number below its `least`.

    Without a `least`, an integer must be 1 or more and a float 0 or more, unless its default is less. None is valid.
    """
    for field in dataclasses.fields(config):
        hint, value = type_hints(type(config))[field.name], getattr(config, field.name)
        if get_origin(hint) is Literal:
            choose(value, get_args(hint), field.name)
        elif value is not None and hint in (int, int | None, float, float | None):
            smallest = least.get(field.name, 1 if hint in (int, int | None) else 0)
            default = field.default if isinstance(field.default, int | float) else smallest
            check_at_least(config, min(smallest, default), field.name)


def check_at_least(config: Any, smallest: float, *options: str, most: float = math.inf) -> None:
    """Raises ValueError for the first of the options, numbers or tuples of numbers, that is out of range."""
    for option in options:
        value = getattr(config, option)
        if not all(smallest <= number <= most for number in (value if isinstance(value, tuple) else (value,))):
            wanted = f"{smallest} or more" if most == math.inf else f"between {smallest} and {most}"
            raise ValueError(f"{option}: {value} is not {wanted}")


def check_range(config: Any, option: str, most: float) -> None:
    """Raises ValueError unless the option is a pair 0 < low <= high <= most."""
    low, high = getattr(config, option)
    if not 0 < low <= high <= most:
        raise ValueError(f"{option}: {(low, high)} is not 0 < low <= high <= {most}")


def is_whole(value: Any) -> bool:
    """Whether it is an integer that a float can represent exactly; booleans are not.

    >>> is_whole(3), is_whole(True), is_whole(10**400)
    (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) < 2**53


def whole_number(value: Any, option: str, least: int = 1, most: int | None = None) -> int:
    """The value as int. Raises ValueError unless it is an integer in the range."""
    if not is_whole(value) or value < least or (most is not None and value > most):
        wanted = f"{least} or more" if most is None else f"a whole number from {least} to {most}"
        raise ValueError(f"{option}: {quote(value)} is not {wanted}")
    return int(value)
