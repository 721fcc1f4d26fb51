"""An experiment: one learner on one benchmark under one protocol. Options: a YAML file and the command line."""

from __future__ import annotations

import dataclasses
import re
from argparse import ArgumentError
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dualnet.data import BENCHMARKS, BenchmarkConfig
from dualnet.files import read_yaml
from dualnet.learners import LEARNERS, learner_class
from dualnet.options import check_at_least
from dualnet.runs.option_files import find, nearest, shipped_files
from dualnet.stream.labels import LabelsConfig
from dualnet.stream.stream import Protocol

Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a result, its name, and how often a run writes something down."""

    name: str
    benchmark_name: str
    benchmark: BenchmarkConfig
    learner_name: str  # a registered name or an import path
    learner: Any  # that learner's Config
    seed: int = 0
    protocol: Protocol = (
        "task_aware"  # task_free: no boundary is told; task_free_boundaries: end_task is called (the authors)
    )
    labels: LabelsConfig = dataclasses.field(default_factory=LabelsConfig)  # how many there are, and how late they come
    batch_size: int = 10
    precision: Precision = "auto"  # auto: bf16 on CUDA, fp32 on the CPU
    log_every: int = 20  # steps
    checkpoint_every: int = 250  # steps; a checkpoint is made at the end of each task too
    stability_every: int = 0  # steps between two looks at the earlier tasks; 0: only when a task has ended

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed: {self.seed} is not between 0 and {2**32 - 1}")
        check_at_least(self, 1, "batch_size", "log_every", "checkpoint_every")
        if self.stability_every < 0:
            raise ValueError(f"stability_every: {self.stability_every} is not 0 (off) or more")
        if self.batch_size < 2:
            raise ValueError("batch_size: 1 is too few for BatchNorm; give 2 or more")

    def with_seed(self, seed: int) -> Experiment:
        return dataclasses.replace(self, seed=seed)

    def mapping(self) -> dict[str, Any]:
        """The experiment written out in full: `parse` gives it back."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        benchmark = {"name": fields.pop("benchmark_name"), **dataclasses.asdict(fields.pop("benchmark"))}  # pyright: ignore
        learner = {"name": fields.pop("learner_name"), **dataclasses.asdict(fields.pop("learner"))}
        labels = dataclasses.asdict(fields.pop("labels"))
        return plain({**fields, "labels": labels, "benchmark": benchmark, "learner": learner})


def check_name(name: str) -> None:
    """A run's folder is called so: a slash makes a folder below, and nothing may lead out of `runs`.

    >>> check_name("table-1/mini-imagenet-ta/er")
    """
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or any(not part.strip() or part in (".", "..") for part in parts):
        raise ValueError(f"name: {name!r} cannot be a folder below runs; give words, with / between them if wanted")


PLAIN_FIELDS = (
    *("name", "seed", "protocol", "batch_size", "precision"),
    *("log_every", "checkpoint_every", "stability_every"),
)
NAMED_SECTIONS = ("benchmark", "learner")  # each has a `name`, which says what its other options are
SECTIONS = ("labels", *NAMED_SECTIONS)


def parse(mapping: Mapping[str, Any]) -> Experiment:
    """An experiment from nested options. Raises ValueError, one line, naming the option and the nearest valid one."""
    check_plain_options(mapping)
    sections = {key: section(mapping, key) for key in NAMED_SECTIONS}
    names = {key: sections[key].pop("name") for key in NAMED_SECTIONS}
    kinds = {
        "labels": LabelsConfig,
        "benchmark": benchmark_class(names["benchmark"]),
        "learner": learner_class(names["learner"]).Config,
    }
    sections["labels"] = mapping.get("labels", {})
    for key, kind in kinds.items():
        check_value(sections[key], kind, key)
    values = typed({**mapping, **sections}, kinds)
    return Experiment(benchmark_name=names["benchmark"], learner_name=names["learner"], **values)


def section(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = mapping.get(key)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: a section with a `name` is needed, not {value!r}")
    if not isinstance(value.get("name"), str):
        raise ValueError(f"{key}.name: a name is needed, not {value.get('name')!r}; `dualnet list` gives them all")
    return dict(value)


def benchmark_class(name: str) -> type[BenchmarkConfig]:
    if name not in BENCHMARKS:
        raise ValueError(f"benchmark.name: {name!r} is not one of {', '.join(BENCHMARKS)}{nearest(name, BENCHMARKS)}")
    return BENCHMARKS[name]


def typed(options: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Options with the types of their fields; strings from a command line become numbers here."""
    hints, fields = get_type_hints(Experiment), dataclasses.fields(Experiment)
    plain_kinds = {field.name: (hints[field.name], field.default) for field in fields if field.name in PLAIN_FIELDS}
    values = instantiated({key: options[key] for key in plain_kinds if key in options}, plain_kinds)
    for key, kind in kinds.items():
        try:
            values |= instantiated({key: options[key]}, {key: (kind, MISSING)})
        except ValueError as error:  # a Config that refuses a value does not know its section
            message = str(error)
            raise ValueError(message if message.startswith(key) else f"{key}.{message}") from error
    return values


def instantiated(options: Mapping[str, Any], kinds: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Options by jsonargparse, each of a type and with a default or MISSING."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    for key, (kind, default) in kinds.items():
        parser.add_argument(f"--{key}", type=kind, **({} if default is MISSING else {"default": default}))
    try:
        return vars(parser.instantiate(parser.parse_object(dict(options))))
    except (ArgumentError, ValueError, TypeError) as error:
        raise ValueError(one_line(str(error))) from error


REWORDED = (  # what jsonargparse says, and what we say
    (r'Parser key "([^"]*)":', r"\1:"),
    (r"<class '([^']*)'>", r"\1"),
    (r"Expected a int\.", "a whole number is needed."),
    (r"Expected a float\.", "a number is needed."),
    (r"(\w+): Problem with given class_path '[^']*': ", r"\1."),
    (r"Does not validate .* Subtypes: \[(.*)\] Errors: .* Given value: ", r"Expected one of \1. Got value: "),
)


def one_line(message: str) -> str:
    """jsonargparse's words in a line that begins with the option."""
    text = " ".join(message.split())
    for pattern, words in REWORDED:
        text = re.sub(pattern, words, text)
    return text


def check_plain_options(options: Mapping[str, Any]) -> None:
    check_keys(options, [*PLAIN_FIELDS, *SECTIONS])
    if "name" not in options:
        raise ValueError("name is missing: say what the experiment is called")
    hints = get_type_hints(Experiment)
    for key, value in options.items():
        if key in PLAIN_FIELDS:
            check_value(value, hints[key], key)


def check_options(options: Mapping[str, Any], kind: Any, prefix: str) -> None:
    """Every key must be a field of the dataclass, and every field without a default must be there."""
    hints = get_type_hints(kind)
    check_keys(options, [*hints, *(["name"] if prefix in NAMED_SECTIONS else [])], prefix)
    for field in dataclasses.fields(kind):
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if field.name not in options and not has_default:
            raise ValueError(f"{prefix}.{field.name} is missing: it has no default")
    for key, value in options.items():
        check_value(value, hints[key], f"{prefix}.{key}")


def check_value(value: Any, hint: Any, key: str) -> None:
    """What jsonargparse would let pass or say in words for programmers: empty values, sections, named choices."""
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ValueError(f"{key}: options below it are needed, not {value!r}")
        check_options(value, hint, key)
    elif value is None and hint is not Any and type(None) not in get_args(hint):
        raise ValueError(f"{key}: has no value; give one, or leave it out for the default")
    elif isinstance(value, str) and is_list(hint) and value.strip()[:1] not in ("[", "(") and value != "null":
        words = ", ".join(word.strip() for word in value.split(","))
        raise ValueError(f"{key}: a list is needed, not {value!r}; write [{words}], in quotes on a command line")
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    if all(isinstance(choice, str) for choice in choices) and choices and value not in choices:
        raise ValueError(f"{key}: {value!r} is not one of {', '.join(choices)}{nearest(str(value), choices)}")


def is_list(hint: Any) -> bool:
    """Whether a word that is no list cannot be meant.

    >>> is_list(tuple[float, float]), is_list(list[str] | None), is_list(str | None)
    (True, True, False)
    >>> is_list(str | list[str]), is_list(dict[str, list[float]])
    (False, False)
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return str not in kinds and any(get_origin(kind) in (list, tuple) for kind in kinds)


def check_keys(options: Mapping[str, Any], valid: Iterable[str], prefix: str = "") -> None:
    valid = list(valid)
    for key in options:
        if key not in valid:
            full = f"{prefix}.{key}" if prefix else str(key)
            near = nearest(str(key), valid, prefix) or f"; there are {', '.join(valid)}"
            raise ValueError(f"{full}: unknown option{near}")


def check_absent(options: Mapping[str, Any], **reasons: str) -> None:
    """Raises ValueError for an option of a command line that would be ignored, with the reason."""
    for key, reason in reasons.items():
        if key in options:
            raise ValueError(f"--{key}: {reason}")


def with_defaults(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Written options, and the defaults of those that were not there yet when they were written. Nothing is checked."""
    known: dict[str, Mapping[str, type]] = {
        "benchmark": BENCHMARKS,
        "learner": {name: learner.Config for name, learner in LEARNERS.items()},
    }
    out = merged(defaults(Experiment), mapping)
    for key, kinds in known.items():
        options = out.get(key)
        if isinstance(options, Mapping) and options.get("name") in kinds:
            out[key] = merged({"name": options["name"], **defaults(kinds[options["name"]])}, options)
    return out


def defaults(kind: Any) -> dict[str, Any]:
    """The options of a dataclass that have a default, as they are written.

    >>> defaults(LabelsConfig)
    {'share': 1.0, 'drawn_per': 'sample', 'delay': 0, 'delay_spread': 0}
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.default is not MISSING:
            values[field.name] = field.default
        elif field.default_factory is not MISSING:
            made = field.default_factory()
            values[field.name] = dataclasses.asdict(made) if dataclasses.is_dataclass(made) else made  # pyright: ignore
    return plain(values)


def plain(value: Any) -> Any:
    """Tuples as lists, so that YAML and JSON write and read the same."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def read(name_or_file: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment in a YAML file, or of that name among those shipped, with options laid over it."""
    path = find(name_or_file, shipped_experiments(), "experiment")
    mapping = options_in(path)
    over = overrides or {}
    try:
        return parse({**merged(mapping, over), "name": over.get("name", name_with(mapping, over))})
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def options_in(file: Path) -> dict[str, Any]:
    """What an experiment's file holds, named after it if it says no name."""
    return {"name": file.stem, **read_yaml(file)}


def name_with(mapping: Mapping[str, Any], over: Mapping[str, Any]) -> Any:
    """The name of an experiment, with another learner or benchmark that is laid over it: it is no longer the file's.

    >>> name_with({"name": "demo-er", "learner": {"name": "er"}}, {"learner": {"name": "mir", "lr": "0.1"}})
    'demo-er,learner=mir'
    """
    names = {key: (named(mapping.get(key)), named(over.get(key))) for key in NAMED_SECTIONS}
    others = [f",{key}={asked}" for key, (own, asked) in names.items() if asked not in (None, own)]
    return f"{mapping['name']}{''.join(others)}" if others else mapping["name"]


def named(section: Any) -> Any:
    return section.get("name") if isinstance(section, Mapping) else None


def shipped_experiments() -> list[Path]:
    return shipped_files()


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over` laid over it, section by section.

    >>> merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merged(out[key], value) if both else value
    return out


def dotted(words: Sequence[str]) -> dict[str, Any]:
    """Options of a command line as nested options, values as text.

    >>> dotted(["--learner.slow_rounds", "10", "--batch_size=20"])
    {'learner': {'slow_rounds': '10'}, 'batch_size': '20'}
    """
    out: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"{word}: an option begins with --, for example --learner.lr 0.1")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not rest:
                raise ValueError(f"{word}: a value must follow")
            value = rest.pop(0)
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        check_one_kind(out, nested)
        out = merged(out, nested)
    return out


def check_one_kind(before: Mapping[str, Any], new: Mapping[str, Any], section: str = "") -> None:
    """Raises ValueError where one word is a value and a section: one of the two would be lost."""
    for key in before.keys() & new.keys():
        kinds = [isinstance(options[key], Mapping) for options in (before, new)]
        if all(kinds):
            check_one_kind(before[key], new[key], f"{section}{key}.")
        elif any(kinds):
            named = not section and key in NAMED_SECTIONS
            remedy = f"--{key}.name names it" if named else "leave one of them out"
            raise ValueError(f"--{section}{key}: given as a value and as a section; {remedy}")
