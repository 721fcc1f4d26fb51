"""A search file: an experiment, and the values that its options may take, in one grid or in several stages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dualnet.files import read_yaml
from dualnet.options import check_absent, check_keys, choose, convert, flat, merged, set_option
from dualnet.runs.experiment import SECTIONS, Experiment, options_in, parse
from dualnet.runs.option_files import SUFFIXES, find, shipped_files

Values = dict[str, Any]  # by dotted name

KEYS = ("experiment", "seeds", "metric", "grid", "stages")
TOGETHER = "values"  # the key of a grid whose values are mappings of several options
METRICS = {"ACC": 1, "LA": 1, "BWT": 1, "FM": -1}  # 1: more is better, -1: less is
NOT_VARIED = {  # options that a grid cannot hold, and what to do
    "name": "the points have one name",
    "seed": "give `seeds`",
    "log_every": "it decides no result",
    "checkpoint_every": "it decides no result",
    "learner.preset": "it stands for several options; vary these",
}
MAX_POINTS = 10_000  # of a grid: at ten seconds a run, a day
EXAMPLE = "search/demo-er.yaml"


@dataclass(frozen=True)
class SearchPlan:
    """What is to be searched. Every point of every stage has been checked."""

    name: str
    base: dict[str, Any]  # options of the experiment, nested, as written
    stages: tuple[tuple[Values, ...], ...]  # the points of one grid after the other, as written
    seeds: tuple[int, ...] = (0,)
    metric: str = "ACC"

    @property
    def varied(self) -> list[str]:
        """The options that some stage varies, in order."""
        return list(dict.fromkeys(option for stage in self.stages for point in stage for option in point))

    def experiment(self, options: Values) -> Experiment:
        over: dict[str, Any] = {}
        for option, value in options.items():
            set_option(over, option, value)
        return parse(merged(self.base, over))

    def before(self, stage: int) -> Values:
        """The first values of the stages before: what a later stage is checked with, while nothing is chosen."""
        return {option: value for points in self.stages[:stage] for option, value in points[0].items()}


def read_plan(name_or_file: str, overrides: Mapping[str, Any] | None = None, seeds: Sequence[int] = ()) -> SearchPlan:
    """The search in a YAML file, or of that name among those shipped, with options laid over its experiment."""
    path = find(name_or_file, shipped_files("search"), "search")
    mapping, overrides = read_yaml(path), overrides or {}
    try:
        check_keys(mapping, KEYS)
        plan = SearchPlan(
            name=path.stem,
            base=merged(base_options(mapping.get("experiment"), path), overrides),
            stages=tuple(points_of(grid, where) for where, grid in grids(mapping).items()),
            seeds=tuple(seeds or convert(mapping.get("seeds", [0]), list[int], "seeds")),
            metric=choose(mapping.get("metric", "ACC"), list(METRICS), "metric"),
        )
        check_overrides(overrides, plan)
        check_points(plan)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    return plan


def check_overrides(overrides: Mapping[str, Any], plan: SearchPlan) -> None:
    check_absent(
        overrides,
        seed="a search runs every point with its seeds; give --seeds",
        name="a search is called after its file; give --out for another folder",
    )
    for option in flat(overrides):
        if option in plan.varied:
            raise ValueError(f"{option}: the grid varies it; change the grid, or leave the option out")


def base_options(experiment: Any, search: Path) -> dict[str, Any]:
    """Values in place, or those of an experiment by name, by file, or by a file beside the search file."""
    if isinstance(experiment, Mapping):
        return {"name": search.stem, **experiment}
    if not isinstance(experiment, str):
        raise ValueError(f"experiment: a name, a file or options are needed, not {experiment!r}")
    beside = search.parent / experiment
    is_beside = beside.suffix in SUFFIXES and beside.is_file()
    return options_in(find(str(beside) if is_beside else experiment, shipped_files(), "experiment"))


def grids(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """One grid, or those of the stages, by where they are in the file."""
    if ("grid" in mapping) == ("stages" in mapping):
        raise ValueError(f"give either `grid` or `stages`, a list of grids; see experiments/{EXAMPLE}")
    stages = mapping.get("stages", [mapping.get("grid")])
    if not isinstance(stages, list) or not stages:
        raise ValueError(f"stages: a list of grids is needed, not {stages!r}")
    return {f"stages[{number}]" if "stages" in mapping else "grid": grid for number, grid in enumerate(stages)}


def points_of(grid: Any, where: str) -> tuple[Values, ...]:
    """All combinations of a grid's values, the last option varying fastest."""
    if not isinstance(grid, Mapping) or not grid:
        raise ValueError(f"{where}: options with lists of values are needed, not {grid!r}")
    axes = [axis(key, values) for key, values in grid.items()]
    if (count := math.prod(len(values) for values in axes)) > MAX_POINTS:
        raise ValueError(f"{where}: {count} points are more than {MAX_POINTS}; shorten it, or search in `stages`")
    names = [option for points in axes for option in points[0]]
    if twice := [option for option in names if names.count(option) > 1]:
        raise ValueError(f"{twice[0]}: is in the grid twice; name it once")
    return tuple({name: value for part in choice for name, value in part.items()} for choice in product(*axes))


def axis(key: Any, values: Any) -> list[Values]:
    """The values of one option or, below TOGETHER, of several: [{learner.lr: 0.1, learner.updates: 1}, ...]."""
    if not isinstance(values, list) or not values:
        raise ValueError(f"{key}: a list of values is needed, not {values!r}")
    points = values if key == TOGETHER else [{key: value} for value in values]
    if not all(isinstance(point, Mapping) and point for point in points):
        raise ValueError(f"{key}: a list of options with their values is needed, not {values!r}")
    for point in points:
        if different := set(points[0]) ^ set(point):
            raise ValueError(f"{key}: {min(map(str, different))} is in some entries only; give it in all of them")
        for option, value in point.items():
            check_varied(option, value)
    return points


def check_varied(option: Any, value: Any) -> None:
    if not isinstance(option, str):
        raise ValueError(f"{option!r}: an option's dotted name is needed, such as learner.lr")
    if option in SECTIONS:
        raise ValueError(f"{option}: a whole section; name an option of it, such as {option}.NAME")
    if option in NOT_VARIED:
        raise ValueError(f"{option}: cannot be searched: {NOT_VARIED[option]}")
    if isinstance(value, Mapping):
        raise ValueError(f"{option}: its values are options themselves; name them dotted, such as {option}.NAME")


def check_points(plan: SearchPlan) -> None:
    """Types, names and ranges of every value and seed, and that none of them is there twice."""
    if not plan.seeds or len(set(plan.seeds)) < len(plan.seeds):
        raise ValueError(f"seeds: {list(plan.seeds)} must be one seed or more, each once")
    for number, stage in enumerate(plan.stages):
        seen: dict[str, Values] = {}
        for options in stage:
            experiment = plan.experiment(plan.before(number) | options)
            for seed in plan.seeds:
                experiment.with_seed(seed)
            if (text := str(experiment.mapping())) in seen:
                raise ValueError(f"{said(options)}: is in the grid twice; give every value once")
            seen[text] = options


def said(options: Values) -> str:
    """
    >>> said({"learner.lr": 0.1, "learner.updates": 2})
    'learner.lr 0.1, learner.updates 2'
    """
    return ", ".join(f"{option} {value}" for option, value in options.items())
