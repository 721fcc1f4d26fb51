"""Options: a YAML file, a command line, and back again. Mistakes in one line that names the option."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dualnet.data import BENCHMARKS
from dualnet.learners import LEARNERS
from dualnet.runs import experiment
from dualnet.runs.experiment import Experiment, dotted, merged, parse, read, shipped_experiments, with_defaults

BASE = {"name": "x", "benchmark": {"name": "procedural"}, "learner": {"name": "er"}}


@pytest.mark.parametrize("file", shipped_experiments(), ids=lambda file: file.stem)
def test_every_shipped_experiment_comes_back_from_what_it_writes(file: Path) -> None:
    parsed = read(file.stem)
    written = yaml.safe_dump(parsed.mapping(), sort_keys=False)
    assert parse(yaml.safe_load(written)) == parsed
    assert parsed.name == file.stem
    assert read(str(file)) == parsed


def test_shipped_experiments_are_found() -> None:
    names = [file.stem for file in shipped_experiments()]
    assert {"demo-dualnet", "demo-er", "demo-finetune"} <= set(names)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_default_is_written_out(learner: str, name: str) -> None:
    fields = dataclasses.fields(BENCHMARKS[name])  # pyright: ignore
    required = {field.name: "there" for field in fields if field.default is dataclasses.MISSING}
    parsed = parse(merged(BASE, {"benchmark": {"name": name, **required}, "learner": {"name": learner}}))
    written = parsed.mapping()
    options = {field.name for field in dataclasses.fields(LEARNERS[learner].Config)}
    assert set(written["learner"]) == options | {"name"}
    assert set(written["benchmark"]) == {field.name for field in fields} | {"name"}
    assert set(written) == {*experiment.PLAIN_FIELDS, "labels", "benchmark", "learner"}
    assert parsed.learner == LEARNERS[learner].Config(), "the defaults have one home, the learner's Config"
    assert parse(yaml.safe_load(yaml.safe_dump(written))) == parsed


def test_plain_fields_are_all_that_is_no_section() -> None:
    fields = {field.name for field in dataclasses.fields(Experiment)}
    sections = {"labels", "benchmark", "benchmark_name", "learner", "learner_name"}
    assert fields - sections == set(experiment.PLAIN_FIELDS)


numbers = st.floats(0, 1, exclude_min=True, width=32).map(float)
like_numbers = st.sampled_from(["1", "1e3", "true", "no", "null", "~", "2020-01-01", "0x1", "[]"])


@settings(max_examples=40)
@given(
    root=like_numbers | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1),
    order=st.none() | st.lists(like_numbers | st.text("ab1:-#'\" ~{[", min_size=1), min_size=1),
    lr=numbers,
    area=numbers,
    name=like_numbers | st.text("abc 1:#-", min_size=1).filter(str.strip),
    seed=st.integers(0, 2**32 - 1),
    delay=st.integers(0, 10**9),
)
def test_any_values_come_back_from_yaml(root, order, lr, area, name, seed, delay) -> None:
    options = {
        "name": name,
        "seed": seed,
        "labels": {"share": lr, "delay": delay},
        "benchmark": {"name": "image_folder", "root": root, "class_order": order},
        "learner": {"name": "dualnet", "lr": lr, "views": {"crop_area": [area, 1.0]}},
    }
    parsed = parse(options)
    assert (parsed.name, parsed.benchmark.root, parsed.benchmark.class_order) == (name, root, order)  # pyright: ignore
    assert (parsed.learner.lr, parsed.learner.views.crop_area, parsed.seed) == (lr, (area, 1.0), seed)
    assert (parsed.labels.share, parsed.labels.delay) == (lr, delay)
    assert parse(yaml.safe_load(yaml.safe_dump(parsed.mapping(), allow_unicode=True))) == parsed


@pytest.mark.parametrize(
    ("words", "way", "value"),
    [
        (["--learner.slow_rounds", "10"], "learner.slow_rounds", 10),
        (["--learner.slow_rounds=10"], "learner.slow_rounds", 10),
        (["--learner.lr", "1e-3"], "learner.lr", 0.001),
        (["--learner.lr", "1"], "learner.lr", 1.0),
        (["--learner.views.crop_area", "[0.1, 0.5]"], "learner.views.crop_area", (0.1, 0.5)),
        (["--learner.memory.policy", "reservoir"], "learner.memory.policy", "reservoir"),
        (["--batch_size", "20"], "batch_size", 20),
        (["--protocol", "task_free"], "protocol", "task_free"),
        (["--batch_size", "20", "--batch_size", "30"], "batch_size", 30),
        (["--benchmark.seed", "3"], "benchmark.seed", 3),
        (["--labels.share", "0.1"], "labels.share", 0.1),
        (["--labels.delay=20", "--labels.delay_spread", "5"], "labels.delay", 20),
        (["--labels.drawn_per", "batch"], "labels.drawn_per", "batch"),
        (["--name", "5"], "name", "5"),
        (["--name=a=b"], "name", "a=b"),
    ],
)
def test_options_of_a_command_line(words: list[str], way: str, value: Any) -> None:
    found: Any = read("demo-dualnet", dotted(words))
    for part in way.split("."):
        found = getattr(found, part)
    assert found == value and type(found) is type(value)
    plain = read("demo-dualnet").mapping()
    changed = {key for key, item in read("demo-dualnet", dotted(words)).mapping().items() if plain[key] != item}
    assert changed == {way.split(".")[0]}, "all else stays"


def test_another_benchmark_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("benchmark: {name: image_folder, root: there}\nlearner: {name: er}\n")
    order = read(str(file), dotted(["--benchmark.class_order", '["1", "b"]', "--benchmark.cache", "null"]))
    assert order.name == "mine"
    assert order.benchmark.class_order == ["1", "b"] and order.benchmark.cache is None  # pyright: ignore


def test_a_name_in_the_file_wins_over_the_file_s_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("name: ours\nbenchmark: {name: procedural}\nlearner: {name: er}\n")
    assert read(str(file)).name == "ours"


@given(st.dictionaries(st.text("ab_", min_size=1), st.text(min_size=1).filter(lambda text: text[0] != "-"), max_size=4))
def test_dotted_is_what_was_typed(options: dict[str, str]) -> None:
    spaced = [word for key, value in options.items() for word in (f"--learner.{key}", value)]
    joined = [f"--learner.{key}={value}" for key, value in options.items()]
    assert dotted(spaced) == dotted(joined) == ({"learner": options} if options else {})


def test_merged_leaves_its_inputs_alone() -> None:
    base = {"a": {"x": 1}, "b": 2}
    assert merged(base, {"a": {"y": 2}, "b": {"z": 1}}) == {"a": {"x": 1, "y": 2}, "b": {"z": 1}}
    assert base == {"a": {"x": 1}, "b": 2}


MISTAKES = {  # what is laid over BASE: the line it gets
    "typo": ({"batchsize": 3}, "batchsize: unknown option; did you mean batch_size?"),
    "typo in a section": ({"learner": {"widht": 3}}, "learner.widht: unknown option; did you mean learner.width?"),
    "typo below": (
        {"learner": {"memory": {"slots": 3}}},
        "learner.memory.slots: unknown option; did you mean learner.memory.slots_per_class?",
    ),
    "nothing like it": ({"learner": {"zzz": 3}}, "learner.zzz: unknown option; there are width, lr, updates"),
    "an option of another learner": ({"learner": {"slow_rounds": 3}}, "learner.slow_rounds: unknown option"),
    "choice": (
        {"protocol": "task_fre"},
        "protocol: 'task_fre' is not one of task_aware, task_free, task_free_boundaries; did you mean task_free?",
    ),
    "choice below": (
        {"learner": {"memory": {"policy": "rings"}}},
        "learner.memory.policy: 'rings' is not one of auto, ring, reservoir; did you mean ring?",
    ),
    "choice of no text": ({"precision": 16}, "precision: 16 is not one of auto, fp32, bf16"),
    "no number": ({"learner": {"width": "wide"}}, "learner.width: a whole number is needed. Got value: wide"),
    "no whole number": ({"batch_size": 2.5}, "batch_size: a whole number is needed. Got value: 2.5"),
    "no number of a benchmark": (
        {"benchmark": {"num_tasks": "many"}},
        "benchmark.num_tasks: a whole number is needed. Got value: many",
    ),
    "no value": ({"protocol": None}, "protocol: has no value; give one, or leave it out for the default"),
    "no value in a section": ({"learner": {"lr": None}}, "learner.lr: has no value"),
    "a value for a section": ({"learner": {"memory": 5}}, "learner.memory: options below it are needed, not 5"),
    "a section for a value": (
        {"learner": {"width": {"a": 1}}},
        "learner.width: a whole number is needed. Got value: {'a': 1}",
    ),
    "labels as a value": ({"labels": 0.1}, "labels: options below it are needed, not 0.1"),
    "labels without a value": ({"labels": None}, "labels: options below it are needed, not None"),
    "typo in labels": ({"labels": {"shares": 0.1}}, "labels.shares: unknown option; did you mean labels.share?"),
    "no number of labels": ({"labels": {"delay": "long"}}, "labels.delay: a whole number is needed. Got value: long"),
    "too many labels": ({"labels": {"share": 2}}, "labels.share: 2.0 is not above 0 and at most 1"),
    "no section": ({"learner": "er"}, "learner: a section with a `name` is needed, not 'er'"),
    "an empty section": ({"benchmark": None}, "benchmark: a section with a `name` is needed, not None"),
    "no learner": ({"learner": {"name": None}}, "learner.name: a name is needed, not None"),
    "a list of learners": ({"learner": {"name": ["er"]}}, "learner.name: a name is needed, not ['er']"),
    "a list of benchmarks": ({"benchmark": {"name": ["a"]}}, "benchmark.name: a name is needed, not ['a']"),
    "learner": ({"learner": {"name": "dualnett"}}, "did you mean dualnet?"),
    "benchmark": ({"benchmark": {"name": "procedual"}}, "did you mean procedural?"),
    "missing": ({"benchmark": {"name": "image_folder"}}, "benchmark.root is missing: it has no default"),
    "either or": (
        {"benchmark": {"name": "image_folder", "root": "r", "input_size": "big"}},
        "benchmark.input_size: Expected one of int, NoneType. Got value: big",
    ),
    "words for a list": (
        {"benchmark": {"name": "image_folder", "root": "r", "class_order": "birne,zebra"}},
        "benchmark.class_order: a list is needed, not 'birne,zebra'; write [birne, zebra], in quotes on a command line",
    ),
    "a word for a list": (
        {"benchmark": {"name": "image_folder", "root": "r", "class_order": "birne"}},
        "benchmark.class_order: a list is needed, not 'birne'; write [birne]",
    ),
    "numbers for a pair": (
        {"learner": {"name": "dualnet", "views": {"crop_area": "0.1,1"}}},
        "learner.views.crop_area: a list is needed, not '0.1,1'; write [0.1, 1]",
    ),
    "too small": ({"learner": {"width": 0}}, "width: 0 is not 1 or more"),
    "out of range": ({"batch_size": 0}, "batch_size: 0 is not 1 or more"),
    "one is too few": ({"batch_size": 1}, "batch_size: 1 is too few for BatchNorm; give 2 or more"),
    "no steps between checkpoints": ({"checkpoint_every": 0}, "checkpoint_every: 0 is not 1 or more"),
    "no steps between lines of the log": ({"log_every": -1}, "log_every: -1 is not 1 or more"),
    "seed below 0": ({"seed": -1}, "seed: -1 is not between 0 and 4294967295"),
    "seed too large": ({"seed": 2**70}, f"seed: {2**70} is not between 0 and 4294967295"),
    "name is no text": ({"name": 5}, "name: Expected a str. Got value: 5"),
    "a number for a key": ({3: 4}, "3: unknown option"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_in_one_line(mistake: str) -> None:
    over, line = MISTAKES[mistake]
    with pytest.raises(ValueError) as caught:
        parse(merged(BASE, over))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_defaults_are_filled_into_what_an_older_version_wrote() -> None:
    """Of every section, and no more: what is there stays, known or not."""
    whole = parse(merged(BASE, {"learner": {"name": "dualnet"}})).mapping()
    old = {"name": "x", "benchmark": {"name": "procedural"}, "learner": {"name": "dualnet", "memory": {}}}
    assert with_defaults(old) == whole
    assert list(with_defaults(old)["learner"]) == list(whole["learner"])
    other = {"labels": {"share": 0.5}, "learner": {"name": "my.Own", "lr": 3}, "benchmark": {"name": "gone"}, "no": 1}
    filled = with_defaults(other)
    assert (filled["learner"], filled["benchmark"], filled["no"]) == (other["learner"], other["benchmark"], 1)
    assert filled["labels"] == {"share": 0.5, "drawn_per": "sample", "delay": 0, "delay_spread": 0}


@pytest.mark.parametrize("name", ["../x", "a/../b", "..", ".", "/x", "", " ", "a//b", "a/", "a\\b", "a\nb", "\x7f"])
def test_a_name_that_would_lead_elsewhere(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse({**BASE, "name": name})
    assert str(caught.value).startswith(f"name: {name!r} cannot be a folder below runs; give words")


@pytest.mark.parametrize("name", ["table-1/mini-imagenet-ta/er", "tiny,learner=my.Own", "käse 3", "...", "a..b"])
def test_a_name_that_is_one(name: str) -> None:
    assert parse({**BASE, "name": name}).name == name


def test_an_experiment_needs_a_name() -> None:
    with pytest.raises(ValueError, match="name is missing"):
        parse({key: value for key, value in BASE.items() if key != "name"})


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--learner.width"], "--learner.width: a value must follow"),
        (["10"], "10: an option begins with --, for example --learner.lr 0.1"),
        (["-x", "1"], "-x: an option begins with --"),
        (
            ["--learner", "er", "--learner.lr", "0.1"],
            "--learner: given as a value and as a section; --learner.name names it",
        ),
        (["--a.b.c", "1", "--a.b", "2"], "--a.b: given as a value and as a section; leave one of them out"),
    ],
)
def test_a_command_line_that_is_none(words: list[str], line: str) -> None:
    with pytest.raises(ValueError) as caught:
        dotted(words)
    assert line in str(caught.value)


def test_an_optional_value_of_a_learner_of_ones_own_may_be_none(tmp_path: Path, monkeypatch) -> None:
    """`Any` and `| None` take an empty value: what `mapping` writes must be read back."""
    (tmp_path / "own_options.py").write_text(
        "from dataclasses import dataclass\nfrom typing import Any\nfrom dualnet import Finetune\n"
        "@dataclass(frozen=True)\nclass Config:\n    what: Any = None\n    limit: float | None = None\n"
        "class Own(Finetune):\n    Config = Config\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    parsed = parse(merged(BASE, {"learner": {"name": "own_options.Own"}}))
    assert parse(yaml.safe_load(yaml.safe_dump(parsed.mapping()))) == parsed
