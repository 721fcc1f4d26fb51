"""`dualnet list`: all names, or the options of one of them, written so that an experiment's file can hold them."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

import yaml

from dualnet.cli.flags import refuse
from dualnet.cli.terminal import say
from dualnet.data import BENCHMARKS
from dualnet.learners import LEARNERS
from dualnet.memory import MEMORIES, MemoryConfig
from dualnet.objectives import OBJECTIVES
from dualnet.options import defaults, field_types
from dualnet.reproduce import shipped_tables
from dualnet.runs import experiment
from dualnet.runs.option_files import shipped_files
from dualnet.search import shipped_searches


def main(arguments: argparse.Namespace, rest: list[str]) -> int:
    refuse(rest)
    for line in lines_of(arguments.name):
        say(line)
    return 0


def lines_of(name: str | None) -> Iterable[str]:
    """Everything that is registered or shipped by that name is shown; what is called like an experiment is that."""
    if name is None:
        return overview()
    files = {path.stem: path for folder in ("search", "tables") for path in shipped_files(folder)}
    if name in files and name not in [path.stem for path in experiment.shipped_experiments()]:
        return files[name].read_text(encoding="utf-8").splitlines()
    if name in LEARNERS:
        return section(LEARNERS[name], ["learner:", f"  name: {name}"], LEARNERS[name].Config)
    if name in BENCHMARKS:
        return section(BENCHMARKS[name], ["benchmark:", f"  name: {name}"], BENCHMARKS[name])
    if name in MEMORIES:
        return section(MEMORIES[name], ["learner:", "  memory:"], MemoryConfig, policy=name)
    if name in OBJECTIVES:
        return section(OBJECTIVES[name], ["learner:", "  name: dualnet", f"  objective: {name}  # it has no options"])
    return yaml.safe_dump(experiment.read(name).mapping(), sort_keys=False).splitlines()


def overview() -> Iterator[str]:
    names = {
        "experiments": [path.stem for path in experiment.shipped_experiments()],
        "searches": [path.stem for path in shipped_searches()],
        "tables": shipped_tables(),
        "learners": LEARNERS,
        "objectives": OBJECTIVES,
        "memories": MEMORIES,
        "benchmarks": BENCHMARKS,
    }
    for kind, entries in names.items():
        yield f"{kind}:"
        yield from (f"  {name}" for name in entries)


def section(thing: type, head: list[str], kind: Any = None, **values: Any) -> Iterator[str]:
    """A part of an experiment's file: every option with its default, its type, and the comment beside it."""
    document = thing.__doc__ or sys.modules[thing.__module__].__doc__ or thing.__name__
    yield f"# {document.splitlines()[0]}"
    yield from head
    yield from option_lines(kind, "    " if head[-1].endswith("memory:") else "  ", values) if kind else ()


def option_lines(kind: Any, indent: str, values: dict[str, Any]) -> Iterator[str]:
    comments, written = comments_of(kind), defaults(kind) | values
    for name, hint in field_types(kind).items():
        if dataclasses.is_dataclass(hint):
            yield f"{indent}{name}:"
            yield from option_lines(hint, f"{indent}  ", {})
        else:
            value = f" {json.dumps(written[name], ensure_ascii=False)}" if name in written else ""
            note = f"{'' if name in written else 'needed; '}{type_name(hint)}"
            yield f"{indent}{name}:{value}  # {': '.join(filter(None, (note, comments.get(name))))}"


def type_name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def comments_of(kind: type) -> dict[str, str]:
    """The comment beside each field of a dataclass, as its source has it."""
    comments: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        try:
            lines = inspect.getsource(cls).splitlines()
        except (OSError, TypeError):  # not from a file of Python
            continue
        field = ""
        for line in lines:
            if not line.startswith("     "):  # the field above may go on, deeper
                field = "".join(re.findall(r"^    (\w+):", line))
            if field and "  # " in line:
                comments[field] = line.partition("  # ")[2].strip()
    return comments
