"""`dualnet list`: all names, or the options of one of them in the format of an experiment file."""

import argparse
import dataclasses
import inspect
import itertools
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from dualnet.cli.list_encoders import NAMES, encoder_lines
from dualnet.cli.terminal import print_line
from dualnet.data.benchmarks import BENCHMARKS, benchmark_class
from dualnet.experiments import experiment
from dualnet.experiments.named_files import SUFFIXES, shipped_files
from dualnet.learners import LEARNERS, DualNet, Learner, learner_class, presets
from dualnet.lookup import import_object
from dualnet.memory import MEMORIES, Memory, MemoryConfig, memory_class
from dualnet.nets.timm_encoder import PREFIX
from dualnet.objectives import OBJECTIVES, Objective, objective_class
from dualnet.options import field_types, suggest
from dualnet.reproduce import shipped_tables

WIDTH, FEW = 80, 20  # of the lines that list all names; the least for a description, in characters
FILES = {
    "experiments": shipped_files,
    "searches": lambda: shipped_files("search"),
    "tables": lambda: shipped_files("tables"),
}
FIND = {
    "learners": learner_class,
    "objectives": objective_class,
    "memories": memory_class,
    "benchmarks": benchmark_class,
}


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    for line in node_lines(arguments.on) if arguments.name == "nodes" else lines_of(arguments.name):
        print_line(line)


def lines_of(name: str | None) -> Iterable[str]:
    """All names, or the options of one. An experiment takes precedence over a search of the same name."""
    names = registered_names()
    if name is None:
        return itertools.chain.from_iterable(described(kind, entries) for kind, entries in names.items())
    if name == "encoders" or name.startswith(PREFIX):
        return encoder_lines(name)
    files = {path.stem: path for folder in ("search", "tables") for path in shipped_files(folder)}
    if name in files and name not in names["experiments"]:
        return files[name].read_text(encoding="utf-8").splitlines()
    outside = import_object(name, "NAME") if is_import_path(name) else None
    for registry, base, lines in PARTS:
        if name in registry or (isinstance(outside, type) and issubclass(outside, base)):
            return lines(name)
    if name in presets.NAMES:
        return preset_lines(name)
    if name not in names["experiments"] and not name.endswith(SUFFIXES) and not Path(name).exists():
        known = [*itertools.chain.from_iterable(names.values()), *presets.NAMES]
        raise ValueError(f"{name}: no such name{suggest(name, known)} (`dualnet list` has them all)")
    return yaml.safe_dump(experiment.read(name).mapping(), sort_keys=False).splitlines()


def node_lines(on: str) -> Iterator[str]:
    from dualnet.jobs.ray_cluster import address_of, connect

    for node in connect(address_of(on)).nodes():
        resources = node["Resources"]
        gpus = f", {resources['GPU']:g} GPUs" if "GPU" in resources else ""
        have = f"{resources.get('CPU', 0):g} CPUs{gpus}, {resources.get('memory', 0) / 2**30:.0f} GiB"
        yield f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']}): {have if node['Alive'] else 'lost'}"


def described(kind: str, names: Iterable[str]) -> Iterator[str]:
    """The names of a kind, each with its description as far as it fits into a line."""
    names = [*names]
    width = max(map(len, names))
    yield f"{kind}:"
    for name in names:
        yield f"  {name:{width}}  {few_words(description(kind, name), WIDTH - width - 4)}"


def few_words(text: str, most: int) -> str:
    """The beginning of a description, without references: the clauses that fit, or if the first is too long, its words.

    >>> few_words("ER (A et al., 2019): replay of stored images, each once.", 30)
    'ER: replay of stored images'
    """
    text = re.sub(r" \((tab:)?[^()]*(?(1)|\d{4})\)", "", " ".join(text.split()))
    ends = [match.start() for match in re.finditer(r"[,.:;](?= |$)", text) if FEW <= match.start() <= most]
    words = textwrap.shorten(text, most, placeholder=" …", break_on_hyphens=False)
    return text[: max(ends)] if ends else words


def description(kind: str, name: str) -> str:
    """The first comment of a file, or the first line of what documents a part."""
    if kind in FILES:
        text = next(path for path in FILES[kind]() if path.stem == name).read_text(encoding="utf-8")
        lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
        return " ".join(line.removeprefix("#") for line in lines)
    if kind == "encoders":
        return NAMES[name]
    part = FIND[kind](name)
    return (part.__doc__ if kind == "memories" else sys.modules[part.__module__].__doc__) or ""


def registered_names() -> dict[str, Iterable[str]]:
    return {
        "experiments": [path.stem for path in shipped_files()],
        "searches": [path.stem for path in shipped_files("search")],
        "tables": shipped_tables(),
        "learners": LEARNERS,
        "objectives": OBJECTIVES,
        "memories": MEMORIES,
        "encoders": NAMES,
        "benchmarks": BENCHMARKS,
    }


def is_import_path(name: str) -> bool:
    """Whether it is rather the path of a class than that of an experiment file."""
    return all(part.isidentifier() for part in name.split(".")) and "." in name and not name.endswith(SUFFIXES)


def learner_lines(name: str) -> Iterator[str]:
    known = presets.NAMES if name == "dualnet" else [key for key, own in presets.OF_OTHERS.items() if name in own]
    note = f"  # preset: {' | '.join(known)}  # sets other defaults; `dualnet list {next(iter(known), '')}` shows them"
    learner, preset = learner_class(name), [note] if known else []
    return section(learner, ["learner:", f"  name: {name}", *preset], learner.Config)


def objective_lines(name: str) -> Iterator[str]:
    objective = objective_class(name)
    has_options = len(dataclasses.fields(objective.Config)) > 0
    options = ["    objective_options:"] if has_options else []
    note = "loss of the slow phase" if has_options else "has no options"
    head = ["learner:", "  name: dualnet", "  slow:", f"    objective: {name}  # {note}", *options]
    return section(objective, head, objective.Config)


def memory_lines(name: str) -> Iterator[str]:
    return section(memory_class(name), ["learner:", "  memory:"], MemoryConfig, policy=name)


def benchmark_lines(name: str) -> Iterator[str]:
    benchmark = benchmark_class(name)
    return section(benchmark, ["benchmark:", f"  name: {name}"], benchmark)


def preset_lines(name: str) -> Iterator[str]:
    """What a preset of DualNet sets, by the protocol and the share of labels if it depends on them."""
    streams: dict[tuple[str, ...], list[str]] = {}
    for protocol, (words, share) in itertools.product(presets.BEST, {"at least": 1.0, "below": 0.0}.items()):
        options = presets.apply_preset({"name": "dualnet", "preset": name}, protocol, share)
        stream = f"# protocol {protocol}, labels.share {words} {presets.FEW_LABELS_BELOW}:"
        streams.setdefault(tuple(chosen_lines(options)), []).append(stream)
    yield f"# The options that preset {name} of DualNet sets"
    for lines, names in streams.items():
        yield from ["", *names] if len(streams) > 1 else ()
        yield from lines
    for objective, options in presets.OBJECTIVES.get(name, {}).items():
        if objective != DualNet.Config().slow.objective:
            yield from ["", f"# with slow.objective {objective}:"]
            yield from chosen_lines({"slow": {"objective": objective, "objective_options": options}})
    for learner, options in presets.OF_OTHERS.get(name, {}).items():
        yield from ["", f"# learner {learner}:", *chosen_lines(options, learner)]


def chosen_lines(options: dict[str, Any], learner: str = "dualnet") -> Iterator[str]:
    """Options of a learner as a section of an experiment file, with their comments."""
    yield from ["learner:", f"  name: {learner}"]
    without_name = {key: value for key, value in options.items() if key != "name"}
    yield from chosen_option_lines(without_name, learner_class(learner).Config, "  ")


def chosen_option_lines(options: dict[str, Any], kind: Any, indent: str) -> Iterator[str]:
    comments, types = comments_of(kind), field_types(kind)
    for name, value in options.items():
        if name == "objective_options":
            objective = objective_class(options.get("objective", kind().objective))
            types = types | {name: objective.Config}
        if dataclasses.is_dataclass(types[name]):
            yield f"{indent}{name}:"
            yield from chosen_option_lines(value, types[name], f"{indent}  ")
        else:
            comment = f"  # {comments[name]}" if name in comments else ""
            yield f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}{comment}"


def section(thing: type, head: list[str], kind: Any, **values: Any) -> Iterator[str]:
    """A section of an experiment file: every option with its default, its type and its comment."""
    document = thing.__doc__ or sys.modules[thing.__module__].__doc__ or thing.__name__
    yield f"# {document.splitlines()[0]}"
    yield from head
    indent = len(head[-1]) - len(head[-1].lstrip()) + (2 if head[-1].endswith(":") else 0)
    yield from option_lines(kind, " " * max(indent, 2), values)


def option_lines(kind: Any, indent: str, values: dict[str, Any]) -> Iterator[str]:
    comments, types = comments_of(kind), field_types(kind)
    for field in dataclasses.fields(kind):
        name, hint = field.name, types[field.name]
        if dataclasses.is_dataclass(hint):
            yield f"{indent}{name}:"
            yield from option_lines(hint, f"{indent}  ", {})
        else:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            value = values.get(name, default)
            note = "required; " if value is MISSING else ""
            default = "" if value is MISSING else f" {json.dumps(value, ensure_ascii=False)}"
            yield f"{indent}{name}:{default}  # {': '.join(filter(None, (note + type_name(hint), comments.get(name))))}"


def type_name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(type_name, get_args(hint)))
    if hint is NoneType:
        return "None"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def comments_of(kind: type) -> dict[str, str]:
    """The comments of the fields of a dataclass, from its source."""
    comments: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        try:
            lines = inspect.getsource(cls).splitlines()
        except (OSError, TypeError):  # no Python source
            continue
        field = ""
        for line in lines:
            if not line.startswith("     "):  # a more indented line continues the field above
                field = "".join(re.findall(r"^    (\w+):", line))
            if field and "  # " in line:
                comments[field] = line.partition("  # ")[2].strip()
    return comments


PARTS = (  # registry, base class of what is outside of the package, and the lines of one
    (LEARNERS, Learner, learner_lines),
    (OBJECTIVES, Objective, objective_lines),
    (MEMORIES, Memory, memory_lines),
    (BENCHMARKS, object, benchmark_lines),
)
