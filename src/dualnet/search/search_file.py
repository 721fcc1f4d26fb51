"""Search files: an experiment and the values to try for its options, in one grid or in several stages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dualnet.experiments.experiment import SECTIONS, Experiment, options_in, parse
from dualnet.experiments.named_files import SUFFIXES, find, shipped_files
from dualnet.files import read_yaml
from dualnet.options import check_absent, check_keys, choose, convert, flatten, merge, nest

Values = dict[str, Any]  # by dotted name

KEYS = ("experiment", "seeds", "metric", "grid", "stages")
JOINT_KEY = "values"  # in a grid: options that vary together, as a list of mappings
METRICS = {"ACC": 1, "LA": 1, "AIA": 1, "BWT": 1, "FM": -1}  # 1: higher is better, -1: lower is better
NOT_SEARCHABLE = ("name", "seed", "log_every", "checkpoint_every", "learner.preset", *SECTIONS)
MAX_POINTS = 10_000  # in a grid; at ten seconds per run, about a day
EXAMPLE = "search/demo-er.yaml"


@dataclass(frozen=True)
class SearchPlan:
    """The experiment, the points of each stage, the seeds and the metric. All points have been checked."""

    name: str
    base: dict[str, Any]  # nested options of the experiment, as written
    stages: tuple[tuple[Values, ...], ...]  # the points of each grid, as written
    seeds: tuple[int, ...]
    metric: str

    @property
    def varied(self) -> list[str]:
        """The options that any stage varies, in order."""
        return list(dict.fromkeys(option for stage in self.stages for point in stage for option in point))

    def experiment(self, options: Values) -> Experiment:
        return parse(merge(self.base, nest(options)))

    def experiments(self) -> list[list[Experiment]]:
        """The experiments of each stage, with the first point of every earlier one, since nothing has been chosen."""
        stages, earlier = [], {}
        for stage in self.stages:
            stages.append([self.experiment(earlier | options) for options in stage])
            earlier |= stage[0]
        return stages


def read_plan(name_or_file: str, overrides: Mapping[str, Any] | None = None, seeds: Sequence[int] = ()) -> SearchPlan:
    """Read a search from a YAML file, or a shipped one by name. `overrides` replace options of its experiment."""
    path = find(name_or_file, shipped_files("search"), "search")
    mapping, overrides = read_yaml(path), overrides or {}
    try:
        check_keys(mapping, KEYS)
        plan = SearchPlan(
            name=path.stem,
            base=merge(base_options(mapping.get("experiment"), path), overrides),
            stages=tuple(grid_points(grid, where) for where, grid in grids(mapping).items()),
            seeds=tuple(seeds or convert(mapping.get("seeds", [0]), list[int], "seeds")),
            metric=choose(mapping.get("metric", "ACC"), list(METRICS), "metric"),
        )
        check_absent(
            overrides,
            seed="a search runs every point with its own seeds; use --seeds",
            name="a search is named after its file; use --out for another folder",
        )
        for option in flatten(overrides):
            if option in plan.varied:
                raise ValueError(f"{option}: already varied by the grid; change the grid or omit the option")
        check_points(plan)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    return plan


def base_options(experiment: Any, search: Path) -> dict[str, Any]:
    """Options given inline, or those of an experiment: a name, a file, or a file in the folder of the search file."""
    if isinstance(experiment, Mapping):
        return {"name": search.stem, **experiment}
    if not isinstance(experiment, str):
        raise ValueError(f"experiment: a name, a file or options are needed, not {experiment!r}")
    sibling = search.parent / experiment
    is_sibling = sibling.suffix in SUFFIXES and sibling.is_file()
    return options_in(find(str(sibling) if is_sibling else experiment, shipped_files(), "experiment"))


def grids(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The grid of each stage, by its place in the file."""
    if ("grid" in mapping) == ("stages" in mapping):
        raise ValueError(f"give either `grid` or `stages` (a list of grids); see experiments/{EXAMPLE}")
    stages = mapping.get("stages", [mapping.get("grid")])
    if not isinstance(stages, list) or not stages:
        raise ValueError(f"stages: a list of grids is needed, not {stages!r}")
    return {f"stages[{number}]" if "stages" in mapping else "grid": grid for number, grid in enumerate(stages)}


def grid_points(grid: Any, where: str) -> tuple[Values, ...]:
    """All combinations of a grid's values, the last option varying fastest."""
    if not isinstance(grid, Mapping) or not grid:
        raise ValueError(f"{where}: options with lists of values are needed, not {grid!r}")
    axes = [axis_points(key, values) for key, values in grid.items()]
    if (count := math.prod(len(values) for values in axes)) > MAX_POINTS:
        raise ValueError(f"{where}: {count} points exceed the limit of {MAX_POINTS}; use fewer values, or `stages`")
    names = [option for points in axes for option in points[0]]
    if twice := [option for option in names if names.count(option) > 1]:
        raise ValueError(f"{twice[0]}: occurs twice in the grid")
    return tuple({name: value for part in choice for name, value in part.items()} for choice in product(*axes))


def axis_points(key: Any, values: Any) -> list[Values]:
    """The values of one option or, below JOINT_KEY, of several: [{learner.lr: 0.1, learner.updates: 1}, ...]."""
    points = values if key == JOINT_KEY or not isinstance(values, list) else [{key: value} for value in values]
    if not points or not isinstance(points, list) or not all(isinstance(point, Mapping) and point for point in points):
        raise ValueError(f"{key}: a list of values is needed, not {values!r}")
    for point in points:
        if different := set(points[0]) ^ set(point):
            raise ValueError(f"{key}: {min(map(str, different))} is missing from some entries; give it in all of them")
        for option, value in point.items():
            check_searchable(option, value)
    return points


def check_searchable(option: Any, value: Any) -> None:
    if not isinstance(option, str) or option in NOT_SEARCHABLE or isinstance(value, Mapping):
        raise ValueError(f"{option}: cannot be searched; give the dotted name of an option, such as learner.lr")


def check_points(plan: SearchPlan) -> None:
    """Check every value and seed, and that no seed or point is repeated."""
    if not plan.seeds or len(set(plan.seeds)) < len(plan.seeds):
        raise ValueError(f"seeds: {list(plan.seeds)} must be one or more different seeds")
    stages = plan.experiments()
    for seed in plan.seeds:
        stages[0][0].with_seed(seed)
    for points, experiments in zip(plan.stages, stages, strict=True):
        seen: set[str] = set()
        for options, experiment in zip(points, experiments, strict=True):
            if (text := str(experiment.mapping())) in seen:
                raise ValueError(f"{options_text(options)}: occurs twice in the grid; give every value once")
            seen.add(text)


def options_text(options: Values) -> str:
    """
    >>> options_text({"learner.lr": 0.1, "learner.updates": 2})
    'learner.lr 0.1, learner.updates 2'
    """
    return ", ".join(f"{option} {value}" for option, value in options.items())
