"""Search files: their meaning, and errors in one line before anything is run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dualnet.experiments.named_files import shipped_files
from dualnet.search import read_plan

EXPERIMENT = {"benchmark": {"name": "procedural"}, "learner": {"name": "er"}}
GRID = {"learner.lr": [0.1, 0.2]}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(**content: Any) -> str:
    Path("mine.yaml").write_text(yaml.safe_dump({"experiment": EXPERIMENT, **content}, sort_keys=False))
    return "mine.yaml"


@pytest.mark.parametrize("file", shipped_files("search"), ids=lambda file: file.stem)
def test_every_shipped_search_is_sound(file: Path) -> None:
    plan = read_plan(file.stem)
    assert plan.name == file.stem and all(len(points) > 1 for points in plan.stages)


def test_the_paper_s_values() -> None:
    rates = {point["learner.lr"] for point in read_plan("mini-imagenet-ta-er").stages[0]}
    assert rates == {0.003, 0.01, 0.03, 0.05, 0.1, 0.3, 0.5}
    (mir,) = read_plan("mini-imagenet-ta-mir").stages
    assert len(mir) == 28 and {point["learner.replay_size"] for point in mir} == {10, 32, 64, 128}


def test_a_grid_is_every_combination_the_last_option_fastest() -> None:
    together = [{"learner.updates": 1, "batch_size": 4}, {"learner.updates": 2, "batch_size": 8}]
    plan = read_plan(written(grid={**GRID, "values": together}, seeds=[3, 1], metric="LA"))
    assert plan.stages == (tuple({"learner.lr": lr, **both} for lr in (0.1, 0.2) for both in together),)
    assert (plan.name, plan.seeds, plan.metric, plan.base["name"]) == ("mine", (3, 1), "LA", "mine")
    assert plan.varied == ["learner.lr", "learner.updates", "batch_size"]
    experiment = plan.experiment(plan.stages[0][3])
    assert (experiment.learner.lr, experiment.learner.updates, experiment.batch_size) == (0.2, 2, 8)


def test_stages_seeds_and_the_metric_have_defaults() -> None:
    plan = read_plan(written(stages=[GRID, {"learner.updates": [1, 2]}]))
    assert len(plan.stages) == 2 and (plan.seeds, plan.metric) == ((0,), "ACC")
    assert [experiment.learner.lr for experiment in plan.experiments()[1]] == [0.1, 0.1]


def test_the_experiment_by_name_by_file_or_beside_the_search() -> None:
    assert read_plan(written(experiment="demo-er", grid=GRID)).base["name"] == "demo-er"
    Path("there").mkdir()
    Path("there/base.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    Path("there/search.yaml").write_text(yaml.safe_dump({"experiment": "base.yaml", "grid": GRID}))
    assert read_plan("there/search.yaml").base == {"name": "base", **EXPERIMENT}
    assert read_plan(written(experiment="there/base.yaml", grid=GRID)).base["learner"] == {"name": "er"}


def test_options_are_laid_over_the_experiment() -> None:
    plan = read_plan(written(grid=GRID), {"learner": {"encoder": {"width": "4"}}}, seeds=[7])
    assert plan.experiment(plan.stages[0][0]).learner.encoder.width == 4 and plan.seeds == (7,)


def test_a_list_can_be_a_value() -> None:
    inline = {"benchmark": {"name": "procedural"}, "learner": {"name": "dualnet"}}
    plan = read_plan(written(experiment=inline, grid={"learner.views.crop_area": [[0.1, 1.0], [0.5, 1.0]]}))
    assert plan.experiment(plan.stages[0][1]).learner.views.crop_area == (0.5, 1.0)


BAD_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"gird": GRID}, "mine.yaml: gird: unknown option; did you mean grid?"),
    "no grid": ({}, "experiments/search/demo-er.yaml"),
    "grid and stages": ({"grid": GRID, "stages": [GRID]}, "`grid` or `stages`"),
    "empty grid": ({"grid": {}}, "grid: "),
    "grid is a list": ({"grid": [GRID]}, "grid: "),
    "no stages": ({"stages": []}, "stages: "),
    "an empty stage": ({"stages": [GRID, {}]}, "stages[1]: "),
    "no values": ({"grid": {"learner.lr": []}}, "learner.lr: "),
    "one value": ({"grid": {"learner.lr": 0.1}}, "learner.lr: "),
    "unknown option": (
        {"grid": {"learner.widht": [1, 2]}},
        "mine.yaml: learner.widht: unknown option; did you mean learner.encoder.width?",
    ),
    "unknown in a later stage": (
        {"stages": [GRID, {"learner.memory.polcy": ["ring"]}]},
        "learner.memory.polcy: unknown option; did you mean learner.memory.policy?",
    ),
    "wrong type": ({"grid": {"learner.encoder.width": [2, "wide"]}}, "learner.encoder.width: "),
    "empty value": ({"grid": {"learner.lr": [0.1, None]}}, "learner.lr: has no value; give one"),
    "value twice": ({"grid": {"learner.lr": [1, 1.0]}}, "learner.lr 1.0: "),
    "option twice": ({"grid": {**GRID, "values": [{"learner.lr": 1.0}]}}, "learner.lr: "),
    "a section": ({"grid": {"learner": [{"name": "er"}]}}, "learner: cannot be searched; "),
    "names in the grid": ({"grid": {"name": ["a"]}}, "name: cannot be searched; "),
    "a number for an option": ({"grid": {3: [1]}}, "3: "),
    "bound to nothing": ({"grid": {"values": []}}, "values: "),
    "bound unevenly": (
        {"grid": {"values": [{"learner.lr": 1, "batch_size": 4}, {"learner.lr": 2}]}},
        "values: batch_size ",
    ),
    "too many points": (
        {"grid": {"learner.lr": list(range(200)), "learner.encoder.width": list(range(1, 100))}},
        "grid: 19800 points ",
    ),
    "seeds twice": ({"grid": GRID, "seeds": [0, 0]}, "seeds: [0, 0]"),
    "no seeds": ({"grid": GRID, "seeds": []}, "seeds: []"),
    "a seed": ({"grid": GRID, "seeds": 3}, "seeds: a list is needed, not 3"),
    "unknown metric": ({"grid": GRID, "metric": "acc"}, "metric: 'acc' is not one of ACC, LA, AIA, BWT, FM"),
    "no experiment": ({"experiment": None, "grid": GRID}, "experiment: "),
    "unknown experiment": (
        {"experiment": "demo-e", "grid": GRID},
        "mine.yaml: demo-e: no such experiment; did you mean demo-er?",
    ),
    "no classes left for validation": (
        {"experiment": {**EXPERIMENT, "benchmark": {"name": "procedural", "num_tasks": 12}}, "grid": GRID},
        "12 tasks of 4, and 3 for validation, need 60 classes, there are 50; lower num_tasks or classes_per_task",
    ),
    "images too small": ({"grid": {"benchmark.image_size": [32, 8]}}, "too small: the networks need 28"),
    "a protocol that the learner cannot take": (
        {
            "experiment": {**EXPERIMENT, "learner": {"name": "dualnet"}},
            "grid": {"protocol": ["task_aware", "task_free"]},
        },
        "protocol: task_free",
    ),
}

BAD_COMMANDS: dict[str, tuple[list[str], str]] = {
    "no file": (["search"], "the following arguments are required: NAME_OR_FILE"),
    "unknown name": (["search", "demo-e"], "demo-e: no such search; did you mean demo-er?"),
    "an experiment": (
        ["search", "base.yaml"],
        "base.yaml: benchmark: unknown option; there are experiment, seeds, met",
    ),
    "a list": (["search", "list.yaml"], "list.yaml: "),
    "no jobs": (["search", "good.yaml", "--jobs", "0"], "argument --jobs: '0'"),
    "a seed": (["search", "good.yaml", "--seed", "1"], "--seeds"),
    "a name": (["search", "good.yaml", "--name", "x"], "--out"),
    "an option that is varied": (["search", "good.yaml", "--learner.lr", "1"], "learner.lr: "),
    "split of validation": (
        ["run", "mini-imagenet-ta-er", "--benchmark.split", "validation"],
        "benchmark.split: 'validation' is not one of continual",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_named_in_one_line(case: str, error_line) -> None:
    content, line = BAD_FILES[case]
    assert line in error_line("search", written(**content), "--device", "cpu")
    assert [*Path().rglob("*")] == [Path("mine.yaml")], "nothing is left behind"


@pytest.mark.parametrize("case", BAD_COMMANDS)
def test_a_bad_command_is_named_in_one_line(case: str, error_line) -> None:
    Path(written(grid=GRID)).rename("good.yaml")
    Path("base.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    Path("list.yaml").write_text("- a")
    words, line = BAD_COMMANDS[case]
    before = sorted(Path().rglob("*"))
    assert line in error_line(*words)
    assert sorted(Path().rglob("*")) == before, "nothing is left behind"
