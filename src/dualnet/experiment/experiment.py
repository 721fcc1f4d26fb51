"""An experiment: one learner on one benchmark under one protocol. Options: a YAML file and the command line."""

from __future__ import annotations

import dataclasses
import difflib
from argparse import ArgumentError
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import yaml

from dualnet.data import BENCHMARKS, BenchmarkConfig
from dualnet.learners import learner_class

Protocol = Literal["task_aware", "task_free", "task_free_boundaries"]
Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a result, and nothing else but `name`."""

    name: str
    benchmark_name: str
    benchmark: BenchmarkConfig
    learner_name: str  # a registered name or an import path
    learner: Any  # that learner's Config
    seed: int = 0
    protocol: Protocol = (
        "task_aware"  # task_free: no boundary is told; task_free_boundaries: end_task is called (the authors)
    )
    batch_size: int = 10
    precision: Precision = "auto"  # auto: bf16 on CUDA, fp32 on the CPU
    log_every: int = 20  # steps
    checkpoint_every: int = 250  # steps; a checkpoint is made at the end of each task too

    def __post_init__(self) -> None:
        for option in ("batch_size", "log_every", "checkpoint_every"):
            if getattr(self, option) < 1:
                raise ValueError(f"{option}: {getattr(self, option)} is not 1 or more")
        if self.batch_size < 2:
            raise ValueError("batch_size: 1 is too few for BatchNorm; give 2 or more")

    def with_seed(self, seed: int) -> Experiment:
        return dataclasses.replace(self, seed=seed)

    def mapping(self) -> dict[str, Any]:
        """The experiment written out in full: `parse` gives it back."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        benchmark = {"name": fields.pop("benchmark_name"), **dataclasses.asdict(fields.pop("benchmark"))}  # pyright: ignore
        learner = {"name": fields.pop("learner_name"), **dataclasses.asdict(fields.pop("learner"))}
        return plain({**fields, "benchmark": benchmark, "learner": learner})


PLAIN_FIELDS = ("name", "seed", "protocol", "batch_size", "precision", "log_every", "checkpoint_every")


def parse(mapping: Mapping[str, Any]) -> Experiment:
    """An experiment from nested options. Raises ValueError, one line, naming the option and the nearest valid one."""
    sections = {key: section(mapping, key) for key in ("benchmark", "learner")}
    kinds = {"benchmark": benchmark_class(sections["benchmark"].pop("name", None))}
    names = {"benchmark": mapping["benchmark"]["name"], "learner": sections["learner"].pop("name", None)}
    if names["learner"] is None:
        raise ValueError("learner.name is missing: say which learner")
    kinds["learner"] = learner_class(names["learner"]).Config
    options = {key: value for key, value in mapping.items() if key not in sections}
    check_keys(options, [*PLAIN_FIELDS, *sections])
    for key, kind in kinds.items():
        check_options(sections[key], kind, key)
    values = typed({**options, **sections}, kinds)
    return Experiment(benchmark_name=names["benchmark"], learner_name=names["learner"], **values)


def section(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = mapping.get(key)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: a section with a `name` is needed, not {value!r}")
    return dict(value)


def benchmark_class(name: Any) -> type[BenchmarkConfig]:
    if name not in BENCHMARKS:
        raise ValueError(
            f"benchmark.name: {name!r} is not one of {', '.join(BENCHMARKS)}{nearest(str(name), BENCHMARKS)}"
        )
    return BENCHMARKS[name]


def typed(options: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Options with the types of their fields, by jsonargparse; strings from a command line become numbers there."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    hints = get_type_hints(Experiment)
    for field in dataclasses.fields(Experiment):
        if field.name in PLAIN_FIELDS:
            default = {} if field.default is dataclasses.MISSING else {"default": field.default}
            parser.add_argument(f"--{field.name}", type=hints[field.name], **default)
    for key, kind in kinds.items():
        parser.add_argument(f"--{key}", type=kind)
    try:
        return vars(parser.instantiate(parser.parse_object(dict(options))))
    except (ArgumentError, ValueError, TypeError) as error:
        raise ValueError(one_line(str(error))) from error


def one_line(message: str) -> str:
    """jsonargparse's words in a line that begins with the option."""
    text = " ".join(message.split())
    for before, after in (
        ('Parser key "', ""),
        ('": ', ": "),
        ("<class '", ""),
        ("'>", ""),
        ("typing.Literal", "one of "),
    ):
        text = text.replace(before, after)
    return text


def check_options(options: Mapping[str, Any], kind: type, prefix: str) -> None:
    """Every key must be a field of the dataclass, in nested dataclasses too; a named choice must exist."""
    hints = get_type_hints(kind)
    check_keys(options, hints, prefix)
    for key, value in options.items():
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            check_options(value, hints[key], f"{prefix}.{key}")  # pyright: ignore[reportArgumentType]
        choices = [choice for choice in get_args(hints[key]) if isinstance(choice, str)]
        if choices and isinstance(value, str) and value not in choices:
            raise ValueError(f"{prefix}.{key}: {value!r} is not one of {', '.join(choices)}{nearest(value, choices)}")


def check_keys(options: Mapping[str, Any], valid: Iterable[str], prefix: str = "") -> None:
    valid = list(valid)
    for key in options:
        if key not in valid:
            full = f"{prefix}.{key}" if prefix else str(key)
            near = nearest(str(key), valid, prefix) or f"; there are {', '.join(valid)}"
            raise ValueError(f"{full}: unknown option{near}")


def nearest(word: str, valid: Iterable[str], prefix: str = "") -> str:
    """A hint at the nearest valid word, or nothing."""
    near = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.5)
    return f"; did you mean {prefix + '.' if prefix else ''}{near[0]}?" if near else ""


def plain(value: Any) -> Any:
    """Tuples as lists, so that YAML and JSON write and read the same."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def read(name_or_file: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment in a YAML file, or of that name among those shipped, with options laid over it."""
    path = find(name_or_file)
    try:
        mapping = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read as YAML ({' '.join(str(error).split())})") from error
    if not isinstance(mapping, dict):
        raise ValueError(f"{path}: not a YAML mapping of options; see experiments/demo-dualnet.yaml")
    try:
        return parse(merged({"name": path.stem, **mapping}, overrides or {}))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def find(name_or_file: str) -> Path:
    path = Path(name_or_file)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ValueError(f"{path}: no such file")
        return path
    for shipped in shipped_experiments():
        if shipped.stem == name_or_file:
            return shipped
    names = [shipped.stem for shipped in shipped_experiments()]
    raise ValueError(f"{name_or_file}: no such experiment{nearest(name_or_file, names)}; `dualnet list` names them all")


def shipped_experiments() -> list[Path]:
    """The files under experiments/: inside the installed package, or beside `src` in a checkout."""
    package = Path(str(files("dualnet")))
    for folder in (package / "experiments", package.parent.parent / "experiments"):
        if folder.is_dir():
            return sorted(folder.glob("*.yaml"))
    return []


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
        out = merged(out, nested)
    return out
