"""An experiment: a learner, a benchmark and a protocol. Its options come from a YAML file and the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from dualnet.data.benchmark import BenchmarkConfig
from dualnet.data.benchmarks import benchmark_class
from dualnet.experiments.named_files import find, shipped_files
from dualnet.files import read_yaml
from dualnet.learners import learner_class, learner_options
from dualnet.learners.presets import apply_preset
from dualnet.nets.weights import know_imagenet
from dualnet.options import (
    build,
    check_at_least,
    check_fields,
    check_keys,
    choose,
    ending_in,
    field_types,
    flatten,
    merge,
    nest,
    option_names,
    parse_flags,
    quote,
    to_plain,
)
from dualnet.stream.blurry import BlurryConfig
from dualnet.stream.schedule import LabelsConfig
from dualnet.stream.stream import Protocol

Precision = Literal["auto", "fp32", "bf16"]
PARTS_OF_IMAGENET = ("mini_imagenet", "tiny_imagenet")


@dataclass(frozen=True)
class Experiment:
    """All options that affect a result, the name, and the intervals of logging and checkpoints."""

    name: str
    benchmark_name: str  # a registered name or an import path
    benchmark: BenchmarkConfig
    learner_name: str  # a registered name or an import path
    learner: Any  # that learner's Config
    seed: int = 0
    protocol: Protocol = "task_aware"  # task_free_boundaries: task-free, but end_task is called
    labels: LabelsConfig = dataclasses.field(default_factory=LabelsConfig)  # missing and late labels
    blurry: BlurryConfig = dataclasses.field(default_factory=BlurryConfig)  # examples that come during other tasks
    batch_size: int = 10
    precision: Precision = "auto"  # auto: bf16 on CUDA, fp32 on the CPU
    log_every: int = 20  # steps
    checkpoint_every: int = 250  # steps; checkpoints are also written at the end of each task
    stability_every: int = 0  # steps between evaluations of earlier tasks; 0: only at the end of a task
    evaluate_every: int = 0  # steps between evaluations of all classes seen so far, for A_AUC; 0: none

    def __post_init__(self) -> None:
        check_name(self.name)
        check_fields(self)
        check_at_least(self, 0, "seed", most=2**32 - 1)
        if self.blurry.share and self.protocol == "task_aware":
            reason = "task_aware tells the task of every example, also of those that come during other tasks"
            raise ValueError(f"blurry.share: protocol {reason}; choose protocol task_free or task_free_boundaries")
        weights = self.learner.encoder.weights
        if self.benchmark_name in PARTS_OF_IMAGENET and know_imagenet(weights):
            reason = f"{weights} was trained on classes of {self.benchmark_name}"
            raise ValueError(f"learner.encoder.weights: {reason}; leave it out")

    def with_seed(self, seed: int) -> Experiment:
        return dataclasses.replace(self, seed=seed)

    @property
    def ordered_benchmark(self) -> BenchmarkConfig:
        """The benchmark with the class order of this seed."""
        return self.benchmark.for_seed(self.seed)

    def mapping(self) -> dict[str, Any]:
        """All options as nested plain values: the inverse of `parse`."""
        fields = {name: getattr(self, name) for name in PLAIN_FIELDS}
        sections = {name: dataclasses.asdict(getattr(self, name)) for name in SECTIONS}
        for name in NAMED_SECTIONS:
            sections[name] = {"name": getattr(self, f"{name}_name"), **sections[name]}
        return to_plain({**fields, **sections})


def check_name(name: str) -> None:
    """The name is a path below `runs`, with slashes for sub-folders: it must not lead out of that folder.

    >>> check_name("table-1/mini-imagenet-ta/er")
    """
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or any(not part.strip() or part in (".", "..") for part in parts):
        raise ValueError(f"name: {name!r} cannot be a folder below runs; use words, separated by / for sub-folders")


# Defaults of a learner whose number of classes is not known. The weight of soft labels must not depend on it.
OPEN_ENDED_DEFAULTS = {
    "soft_labels.when": "insertion",
    "soft_labels.weight": 1.0,
    "soft_labels.mean": "example",
    "memory.policy": "balanced",
    "memory.slots": 2000,
}
NAMED_SECTIONS = ("benchmark", "learner")  # their `name` decides which other options they have
SECTIONS = ("labels", "blurry", *NAMED_SECTIONS)
PLAIN_FIELDS = tuple(name for name in field_types(Experiment) if name.partition("_")[0] not in SECTIONS)


def parse(mapping: Mapping[str, Any]) -> Experiment:
    """An experiment from nested options. Raises ValueError, one line, with the option and the nearest valid one."""
    check_keys(mapping, [*PLAIN_FIELDS, *SECTIONS])
    benchmark_name, benchmark = parse_section(mapping.get("benchmark"), "benchmark", benchmark_class)
    learner_name, learner = parse_learner(with_stream_preset(mapping))
    named = {"benchmark_name": benchmark_name, "benchmark": benchmark, "learner_name": learner_name, "learner": learner}
    return build(Experiment, {**mapping, **named})


def with_stream_preset(mapping: Mapping[str, Any]) -> Any:
    """The learner's options, merged into its preset for this protocol and share of labels, if it names one."""
    learner = mapping.get("learner")
    if not isinstance(learner, Mapping) or "preset" not in learner:
        return learner
    protocol = choose(mapping.get("protocol", Experiment.protocol), get_args(Protocol), "protocol")
    return apply_preset(learner, protocol, build(LabelsConfig, mapping.get("labels", {}), "labels").share)


def parse_learner(options: Any) -> tuple[str, Any]:
    """Name and Config of a learner."""
    return parse_section(options, "learner", lambda name: learner_class(name).Config)


def open_ended(learner: Any, label_share: float = 1.0, boundaries: bool = False) -> tuple[str, Any]:
    """Name and Config of a learner for a stream without tasks and with an unknown number of classes.

    With `boundaries` it is told when a task ends.
    """
    if not isinstance(learner, Mapping) or not isinstance(learner.get("name"), str):
        return parse_learner(learner)  # raises the error
    given = flatten(learner)
    if "memory.slots_per_class" in given and "memory.slots" not in given:
        raise ValueError("learner.memory.slots_per_class: the number of classes is unknown; give memory.slots")
    known = option_names(learner_class(learner["name"]).Config)
    defaults = nest({option: value for option, value in OPEN_ENDED_DEFAULTS.items() if option in known})
    if "preset" in learner:
        named = {key: learner[key] for key in ("name", "preset", "encoder") if key in learner}
        preset = apply_preset(named, "task_free", label_share)
        defaults = merge(merge(defaults, preset), {"memory": defaults["memory"]})
    if boundaries and "soft_labels.when" in known:
        defaults = merge(defaults, {"soft_labels": {"when": "task_end"}})
    chosen = {key: value for key, value in learner.items() if key != "preset"}
    name, config = parse_learner(merge(defaults, chosen))
    if learner_class(name).needs_boundaries(config) and not boundaries:
        raise ValueError(f"learner.name: {name} needs tasks with these options, and there are none here; change them")
    return name, config


def parse_section(options: Any, key: str, kind_of: Callable[[str], type]) -> tuple[str, Any]:
    """The name in a section, and its other options as the dataclass that belongs to the name."""
    if not isinstance(options, Mapping):
        example = quote({"name": options if isinstance(options, str) else "NAME"})
        remedy = f"write {example}, or on a command line --{key}.name"
        raise ValueError(f"{key}: a section with a `name` is needed, not {quote(options)}; {remedy}")
    name = options.get("name")
    if not isinstance(name, str):
        raise ValueError(f"{key}.name: a name is needed, not {quote(name)}; `dualnet list` shows all")
    kind = kind_of(name)
    check_keys(options, ["name", *option_names(kind)], key)
    return name, build(kind, {option: value for option, value in options.items() if option != "name"}, key)


def command_options(words: Sequence[str], flags: Iterable[str]) -> dict[str, Any]:
    """Options of an experiment on a command line. For unknown ones the flags of the command are suggested too."""
    options = parse_flags(words)
    check_keys(options, [*PLAIN_FIELDS, *SECTIONS, *flags, *ending_in(learner_options(), options)])
    return options


def read(name_or_file: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a YAML file, or the shipped one of that name, with some options overridden."""
    path = find(name_or_file, shipped_files(), "experiment")
    mapping = options_in(path)
    over = overrides or {}
    try:
        return parse({**merge(mapping, over), "name": over.get("name", name_with(mapping, over))})
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def options_in(file: Path) -> dict[str, Any]:
    """The options in the file of an experiment; the default of `name` is that of the file."""
    return {"name": file.stem, **read_yaml(file)}


def name_with(mapping: Mapping[str, Any], over: Mapping[str, Any]) -> Any:
    """The name of an experiment, extended if its learner or benchmark is overridden.

    >>> name_with({"name": "demo-er", "learner": {"name": "er"}}, {"learner": {"name": "mir", "lr": "0.1"}})
    'demo-er,learner=mir'
    """
    name = mapping["name"]
    for key in NAMED_SECTIONS:
        own, override = (flatten(options).get(f"{key}.name") for options in (mapping, over))
        name = name if override in (None, own) else f"{name},{key}={override}"
    return name
