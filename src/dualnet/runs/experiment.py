"""An experiment: one learner on one benchmark under one protocol. Options: a YAML file and the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from dualnet.data import BENCHMARKS, BenchmarkConfig
from dualnet.files import read_yaml
from dualnet.learners import learner_class
from dualnet.learners.presets import apply_preset
from dualnet.nets.weights import was_trained_on
from dualnet.options import build, check_at_least, check_keys, choose, dotted, field_types, flat, merged, plain, shown
from dualnet.runs.option_files import find, shipped_files
from dualnet.stream.labels import LabelsConfig
from dualnet.stream.stream import Protocol

Precision = Literal["auto", "fp32", "bf16"]
LEARNED_BY_STARTER = ("mini_imagenet", "tiny_imagenet")  # the first is what it was trained on; both are of ImageNet


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a result, its name, and how often a run writes something down."""

    name: str
    benchmark_name: str
    benchmark: BenchmarkConfig
    learner_name: str  # a registered name or an import path
    learner: Any  # that learner's Config
    seed: int = 0
    protocol: Protocol = "task_aware"  # task_free: no boundary is told; task_free_boundaries: end_task is called
    labels: LabelsConfig = dataclasses.field(default_factory=LabelsConfig)  # how many there are, and how late they come
    batch_size: int = 10
    precision: Precision = "auto"  # auto: bf16 on CUDA, fp32 on the CPU
    log_every: int = 20  # steps
    checkpoint_every: int = 250  # steps; a checkpoint is made at the end of each task too
    stability_every: int = 0  # steps between two looks at the earlier tasks; 0: only when a task has ended

    def __post_init__(self) -> None:
        check_name(self.name)
        check_at_least(self, 0, "seed", most=2**32 - 1)
        check_at_least(self, 1, "batch_size", "log_every", "checkpoint_every")
        check_at_least(self, 0, "stability_every")
        for option in ("start", "weights") if self.benchmark_name in LEARNED_BY_STARTER else ():
            if was_trained_on(getattr(self.learner, option, None), "miniImageNet"):
                reason = f"the starter has learned classes of {self.benchmark_name}"
                raise ValueError(f"learner.{option}: {reason}; leave it out there")

    def with_seed(self, seed: int) -> Experiment:
        return dataclasses.replace(self, seed=seed)

    def mapping(self) -> dict[str, Any]:
        """The experiment written out in full: `parse` gives it back."""
        fields = {name: getattr(self, name) for name in PLAIN_FIELDS}
        sections = {name: dataclasses.asdict(getattr(self, name)) for name in SECTIONS}
        for name in NAMED_SECTIONS:
            sections[name] = {"name": getattr(self, f"{name}_name"), **sections[name]}
        return plain({**fields, **sections})


def check_name(name: str) -> None:
    """A run's folder is called so: a slash makes a folder below, and nothing may lead out of `runs`.

    >>> check_name("table-1/mini-imagenet-ta/er")
    """
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or any(not part.strip() or part in (".", "..") for part in parts):
        raise ValueError(f"name: {name!r} cannot be a folder below runs; give words, with / between them if wanted")


# Of a learner whose classes come one by one, unless its preset says otherwise. The weight of soft labels must not
# depend on how many classes there are yet.
OPEN: dict[str, Any] = {
    "soft_labels": "insertion",
    "soft_label_weight": 1.0,
    "soft_label_mean": "example",
    "memory": {"policy": "balanced", "slots": 2000},
}
NAMED_SECTIONS = ("benchmark", "learner")  # each has a `name`, which says what its other options are
SECTIONS = ("labels", *NAMED_SECTIONS)
PLAIN_FIELDS = tuple(name for name in field_types(Experiment) if name.partition("_")[0] not in SECTIONS)


def parse(mapping: Mapping[str, Any]) -> Experiment:
    """An experiment from nested options. Raises ValueError, one line, naming the option and the nearest valid one."""
    check_keys(mapping, [*PLAIN_FIELDS, *SECTIONS])
    benchmark_name, benchmark = parse_section(
        mapping.get("benchmark"), "benchmark", lambda name: BENCHMARKS[choose(name, list(BENCHMARKS), "benchmark.name")]
    )
    learner_name, learner = parse_learner(with_stream_preset(mapping))
    named = {"benchmark_name": benchmark_name, "benchmark": benchmark, "learner_name": learner_name, "learner": learner}
    return build(Experiment, {**mapping, **named})


def with_stream_preset(mapping: Mapping[str, Any]) -> Any:
    """The learner's options, laid over the preset that it names for this protocol and share of labels."""
    learner = mapping.get("learner")
    if not isinstance(learner, Mapping) or "preset" not in learner:
        return learner
    protocol = choose(mapping.get("protocol", Experiment.protocol), get_args(Protocol), "protocol")
    return apply_preset(learner, protocol, build(LabelsConfig, mapping.get("labels", {}), "labels").share)


def parse_learner(options: Any) -> tuple[str, Any]:
    """Name and Config of a learner."""
    return parse_section(options, "learner", lambda name: learner_class(name).Config)


def open_ended(learner: Any, label_share: float = 1.0, boundaries: bool = False) -> tuple[str, Any]:
    """Name and Config of a learner whose stream has neither tasks nor a known number of classes.

    With `boundaries` it is told where a task ends.
    """
    if not isinstance(learner, Mapping) or not isinstance(learner.get("name"), str):
        return parse_learner(learner)  # which says what is wrong
    given = flat(learner)
    if "memory.slots_per_class" in given and "memory.slots" not in given:
        raise ValueError("learner.memory.slots_per_class: more classes may come; give memory.slots, the number in all")
    known = field_types(learner_class(learner["name"]).Config)
    usual = {key: value for key, value in OPEN.items() if key in known}
    if "preset" in learner:
        preset = apply_preset({key: learner[key] for key in ("name", "preset")}, "task_free", label_share)
        usual = merged(merged(usual, preset), {"memory": OPEN["memory"]})
    if boundaries and "soft_labels" in known:
        usual["soft_labels"] = "task_end"
    chosen = {key: value for key, value in learner.items() if key != "preset"}
    name, config = parse_learner(merged(usual, chosen))
    if learner_class(name).needs_boundaries(config) and not boundaries:
        raise ValueError(f"learner.name: {name} needs tasks with these options, and there are none here; take others")
    return name, config


def parse_section(options: Any, key: str, kind_of: Callable[[str], type]) -> tuple[str, Any]:
    """A name, and the dataclass that it stands for with the other options of the section."""
    if not isinstance(options, Mapping):
        raise ValueError(f"{key}: a section with a `name` is needed, not {shown(options)}")
    name = options.get("name")
    if not isinstance(name, str):
        raise ValueError(f"{key}.name: a name is needed, not {shown(name)}; `dualnet list` gives them all")
    kind = kind_of(name)
    check_keys(options, ["name", *field_types(kind)], key)
    return name, build(kind, {option: value for option, value in options.items() if option != "name"}, key)


def command_options(words: Sequence[str], flags: Iterable[str]) -> dict[str, Any]:
    """Options of an experiment on a command line. One that does not exist may have been meant as a flag of the verb."""
    options = dotted(words)
    check_keys(options, [*PLAIN_FIELDS, *SECTIONS, *flags])
    return options


def read(name_or_file: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment in a YAML file, or of that name among those shipped, with options laid over it."""
    path = find(name_or_file, shipped_files(), "experiment")
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
    name = mapping["name"]
    for key in NAMED_SECTIONS:
        own, asked = (flat(options).get(f"{key}.name") for options in (mapping, over))
        name = name if asked in (None, own) else f"{name},{key}={asked}"
    return name
