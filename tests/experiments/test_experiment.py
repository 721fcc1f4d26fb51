"""Options: a YAML file, a command line, and back again. Mistakes in one line that names the option."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dualnet.data.benchmarks import BENCHMARKS
from dualnet.experiments import experiment
from dualnet.experiments.experiment import Experiment, parse, read
from dualnet.experiments.named_files import shipped_files
from dualnet.learners import LEARNERS
from dualnet.options import build, merge, parse_flags

FOLDER = {"name": "image_folder", "root": "r"}
BOMB = "&a0 [x, x]" + "".join(f", &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))
AREA = "learner.views.crop_area"
BASE = {"name": "x", "benchmark": {"name": "procedural"}, "learner": {"name": "er"}}


@pytest.mark.parametrize("file", shipped_files(), ids=lambda file: file.stem)
def test_every_shipped_experiment_comes_back_from_what_it_writes(file: Path) -> None:
    parsed = read(file.stem)
    written = yaml.safe_dump(parsed.mapping(), sort_keys=False)
    assert parse(yaml.safe_load(written)) == parsed
    assert parsed.name == file.stem
    assert read(str(file)) == parsed


def test_shipped_experiments_are_found() -> None:
    names = [file.stem for file in shipped_files()]
    assert {"demo-dualnet", "demo-er", "demo-finetune"} <= set(names)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_default_is_written_out(learner: str, name: str) -> None:
    fields = dataclasses.fields(BENCHMARKS[name])  # pyright: ignore
    required = {field.name: "there" for field in fields if field.default is dataclasses.MISSING}
    parsed = parse(merge(BASE, {"benchmark": {"name": name, **required}, "learner": {"name": learner}}))
    written = parsed.mapping()
    options = {field.name for field in dataclasses.fields(LEARNERS[learner].Config)}
    assert set(written["learner"]) == options | {"name"}
    assert set(written["benchmark"]) == {field.name for field in fields} | {"name"}
    assert set(written) == {*experiment.PLAIN_FIELDS, "labels", "blurry", "benchmark", "learner"}
    assert parsed.learner == LEARNERS[learner].Config(), "the defaults have one home, the learner's Config"
    assert parse(yaml.safe_load(yaml.safe_dump(written))) == parsed


def test_plain_fields_are_all_that_is_no_section() -> None:
    fields = {field.name for field in dataclasses.fields(Experiment)}
    sections = {"labels", "blurry", "benchmark", "benchmark_name", "learner", "learner_name"}
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
        (["--learner.slow.rounds", "10"], "learner.slow.rounds", 10),
        (["--learner.slow.rounds=10"], "learner.slow.rounds", 10),
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
    option: Any = read("demo-dualnet", parse_flags(words))
    for part in way.split("."):
        option = getattr(option, part)
    assert option == value and type(option) is type(value)
    plain = read("demo-dualnet").mapping()
    changed = {key for key, item in read("demo-dualnet", parse_flags(words)).mapping().items() if plain[key] != item}
    assert changed == {way.split(".")[0]}, "all else stays"


def test_another_benchmark_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("benchmark: {name: image_folder, root: there}\nlearner: {name: er}\n")
    order = read(str(file), parse_flags(["--benchmark.class_order", '["1", "b"]', "--benchmark.cache", "null"]))
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
    assert parse_flags(spaced) == parse_flags(joined) == ({"learner": options} if options else {})


def test_merged_leaves_its_inputs_alone() -> None:
    base = {"a": {"x": 1}, "b": 2}
    assert merge(base, {"a": {"y": 2}, "b": {"z": 1}}) == {"a": {"x": 1, "y": 2}, "b": {"z": 1}}
    assert base == {"a": {"x": 1}, "b": 2}


MISTAKES = {  # what is laid over BASE: the option that its line begins with, and what else it names
    "typo": ({"batchsize": 3}, "batchsize", "batch_size?"),
    "typo in a section": ({"learner": {"encoder": {"widht": 3}}}, "learner.encoder.widht", "learner.encoder.width?"),
    "typo below": ({"learner": {"memory": {"slot": 3}}}, "learner.memory.slot", "learner.memory.slots?"),
    "nothing like it": ({"learner": {"zzz": 3}}, "learner.zzz", "name, encoder, lr"),
    "an option of another learner": ({"learner": {"slow": {"rounds": 3}}}, "learner.slow", ""),
    "choice": ({"protocol": "task_fre"}, "protocol", "task_aware, task_free, task_free_boundaries"),
    "nearest choice": ({"protocol": "task_fre"}, "protocol", "task_free?"),
    "choice below": ({"learner": {"memory": {"policy": "rings"}}}, "learner.memory.policy", "ring?"),
    "choice of no text": ({"precision": 16}, "precision", "auto, fp32, bf16"),
    "no number": ({"learner": {"encoder": {"width": "wide"}}}, "learner.encoder.width", "'wide'"),
    "no whole number": ({"batch_size": 2.5}, "batch_size", "2.5"),
    "a whole number as a float": ({"batch_size": 2.0}, "batch_size", "2.0"),
    "true is no number": ({"batch_size": True}, "batch_size", "True"),
    "true is no rate": ({"learner": {"lr": True}}, "learner.lr", "True"),
    "not a number": ({"learner": {"lr": float("nan")}}, "learner.lr", "nan"),
    "infinite": ({"learner": {"lr": float("inf")}}, "learner.lr", "inf"),
    "infinite in text": ({"learner": {"lr": "-inf"}}, "learner.lr", "-inf"),
    "a rate too large": ({"learner": {"lr": 10**400}}, "learner.lr", "1000"),
    "a number too large": ({"learner": {"encoder": {"width": 10**400}}}, "learner.encoder.width", "1000"),
    "a number in many digits": ({"learner": {"encoder": {"width": "9" * 10**5}}}, "learner.encoder.width", "999..."),
    "neither true nor false": ({"learner": {"joint_statistics": 1}}, "learner.joint_statistics", "1"),
    "no truth": ({"learner": {"joint_statistics": "maybe"}}, "learner.joint_statistics", "'maybe'"),
    "no number of a benchmark": ({"benchmark": {"num_tasks": "many"}}, "benchmark.num_tasks", "'many'"),
    "no value": ({"protocol": None}, "protocol", ""),
    "no value in a section": ({"learner": {"lr": None}}, "learner.lr", ""),
    "a value for a section": ({"learner": {"memory": 5}}, "learner.memory", "5"),
    "a section for a value": ({"learner": {"encoder": {"width": {"a": 1}}}}, "learner.encoder.width", "{'a': 1}"),
    "labels as a value": ({"labels": 0.1}, "labels", "0.1"),
    "labels without a value": ({"labels": None}, "labels", ""),
    "typo in labels": ({"labels": {"shares": 0.1}}, "labels.shares", "labels.share?"),
    "no number of labels": ({"labels": {"delay": "long"}}, "labels.delay", "'long'"),
    "too many labels": ({"labels": {"share": 2}}, "labels.share", "2.0"),
    "no section": ({"learner": "er"}, "learner", "'er'"),
    "an empty section": ({"benchmark": None}, "benchmark", "None"),
    "no learner": ({"learner": {"name": None}}, "learner.name", "None"),
    "a list of learners": ({"learner": {"name": ["er"]}}, "learner.name", "['er']"),
    "a list of benchmarks": ({"benchmark": {"name": ["a"]}}, "benchmark.name", "['a']"),
    "learner": ({"learner": {"name": "dualnett"}}, "learner.name", "dualnet?"),
    "benchmark": ({"benchmark": {"name": "procedual"}}, "benchmark.name", "procedural?"),
    "missing": ({"benchmark": {"name": "image_folder"}}, "benchmark.root", ""),
    "either or": ({"benchmark": {**FOLDER, "input_size": "big"}}, "benchmark.input_size", "'big'"),
    "words for a list": ({"benchmark": {**FOLDER, "class_order": "a,b"}}, "benchmark.class_order", "write [a,b]"),
    "a word for a list": ({"benchmark": {**FOLDER, "class_order": "a"}}, "benchmark.class_order", "write [a]"),
    "a number for a list": ({"benchmark": {**FOLDER, "class_order": 3}}, "benchmark.class_order", "3"),
    "numbers in a list of words": ({"benchmark": {**FOLDER, "class_order": [3]}}, "benchmark.class_order", "3"),
    "half a list": ({"benchmark": {**FOLDER, "class_order": "[a"}}, "benchmark.class_order", "'[a'"),
    "deep lists": ({"benchmark": {**FOLDER, "class_order": "[" * 10**5}}, "benchmark.class_order", "[[..."),
    "an alias bomb in text": ({"benchmark": {**FOLDER, "class_order": f"[[{BOMB}]]"}}, "benchmark.class_order", "'x'"),
    "a number for a path": ({"benchmark": {**FOLDER, "root": 3}}, "benchmark.root", "3"),
    "NUL in a path": ({"benchmark": {**FOLDER, "root": "a\0b"}}, "benchmark.root", "'a\\x00b'"),
    "numbers for a pair": ({"learner": {"name": "dualnet", "views": {"crop_area": "1,1"}}}, AREA, "write [1,1]"),
    "one number for a pair": ({"learner": {"name": "dualnet", "views": {"crop_area": [1]}}}, AREA, "[1]"),
    "a pair of words": ({"learner": {"name": "dualnet", "views": {"crop_area": ["a", 1]}}}, AREA, "'a'"),
    "a pair out of range": ({"learner": {"name": "dualnet", "views": {"crop_area": [0, 1]}}}, AREA, "0.0, 1.0"),
    "too small": ({"learner": {"encoder": {"width": 0}}}, "learner.encoder.width", "0"),
    "too small below": ({"learner": {"memory": {"slots_per_class": 0}}}, "learner.memory.slots_per_class", "0"),
    "out of range": ({"batch_size": 0}, "batch_size", "0"),
    "no steps between checkpoints": ({"checkpoint_every": 0}, "checkpoint_every", "0"),
    "evaluations before every step": ({"evaluate_every": -1}, "evaluate_every", "-1 is not 0"),
    "probes before every step": ({"stability_every": -1}, "stability_every", "-1 is not 0"),
    "no steps between lines of the log": ({"log_every": -1}, "log_every", "-1"),
    "seed below 0": ({"seed": -1}, "seed", "-1"),
    "seed too large": ({"seed": 2**32}, "seed", f"{2**32}"),
    "name is no text": ({"name": 5}, "name", "5"),
    "a number for a key": ({3: 4}, "3", ""),
    "a long key": ({"learner": {"k" * 10**6: 4}}, f"learner.{'k' * 80}", ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_in_one_line(mistake: str) -> None:
    over, option, named = MISTAKES[mistake]
    with pytest.raises(ValueError) as caught:
        parse(merge(BASE, over))
    line = str(caught.value)
    assert line.startswith(f"{option}: ") and named in line
    assert "\n" not in line and len(line) < 500


@dataclass(frozen=True)
class Inner:
    ratio: float = 0.5

    def __post_init__(self) -> None:
        if self.ratio > 1:
            raise ValueError("must not be above 1")


@dataclass(frozen=True)
class Outer:
    needed: int
    either: int | float | str = 0
    maybe: Inner | None = None
    many: tuple[int, ...] = ()
    words: list[str] = field(default_factory=list)
    by_name: dict[str, list[float]] = field(default_factory=dict)
    number: Literal[1, 2] = 1
    flag: bool = False
    anything: Any = None


BUILT = [  # options, and what they give
    ({"needed": "7"}, Outer(7)),
    ({"needed": "0x10"}, Outer(16)),
    ({"needed": 1, "either": "5"}, Outer(1, 5)),
    ({"needed": 1, "either": 5.0}, Outer(1, 5.0)),
    ({"needed": 1, "either": "1e3"}, Outer(1, 1000.0)),
    ({"needed": 1, "either": "word"}, Outer(1, "word")),
    ({"needed": 1, "maybe": {"ratio": 1}}, Outer(1, maybe=Inner(1.0))),
    ({"needed": 1, "maybe": "null"}, Outer(1)),
    ({"needed": 1, "many": "[1, 2, 3]"}, Outer(1, many=(1, 2, 3))),
    ({"needed": 1, "many": []}, Outer(1)),
    ({"needed": 1, "words": "[null, 3, a b]"}, Outer(1, words=["null", "3", "a b"])),
    ({"needed": 1, "by_name": {"a": [1, "2"]}}, Outer(1, by_name={"a": [1.0, 2.0]})),
    ({"needed": 1, "by_name": "{a: [1, 2]}"}, Outer(1, by_name={"a": [1.0, 2.0]})),
    ({"needed": 1, "number": "2"}, Outer(1, number=2)),
    ({"needed": 1, "flag": "True"}, Outer(1, flag=True)),
    ({"needed": 1, "flag": "no"}, Outer(1)),
    ({"needed": 1, "anything": "[1, 2]"}, Outer(1, anything=[1, 2])),
    ({"needed": 1, "anything": "word"}, Outer(1, anything="word")),
]


@pytest.mark.parametrize(("options", "built"), BUILT)
def test_a_dataclass_is_built_from_plain_values_or_text(options: dict[str, Any], built: Outer) -> None:
    made = build(Outer, options)
    assert made == built
    assert [type(value) for value in vars(made).values()] == [type(value) for value in vars(built).values()]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({}, "there.needed"),
        (None, "there"),
        ({"needed": 1, "number": True}, "there.number"),
        ({"needed": 1, "number": 3}, "there.number"),
        ({"needed": 1, "maybe": {"ratio": "much"}}, "there.maybe.ratio"),
        ({"needed": 1, "maybe": {"ratio": 2}}, "there.maybe"),
        ({"needed": 1, "by_name": {"a": 1}}, "there.by_name.a"),
        ({"needed": 1, "by_name": 1}, "there.by_name"),
        ({"needed": 1, "either": [1]}, "there.either"),
        ({"needed": 1, "many": "[1, a]"}, "there.many"),
    ],
)
def test_a_dataclass_that_cannot_be_built(options: Any, option: str) -> None:
    with pytest.raises(ValueError) as caught:
        build(Outer, options, "there")
    assert str(caught.value).startswith(f"{option}: ")


def test_a_batch_of_one_is_an_experiment() -> None:
    assert parse({**BASE, "batch_size": 1}).batch_size == 1


@pytest.mark.parametrize("name", ["../x", "a/../b", "..", ".", "/x", "", " ", "a//b", "a/", "a\\b", "a\nb", "\x7f"])
def test_a_name_that_would_lead_elsewhere(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse({**BASE, "name": name})
    assert str(caught.value).startswith(f"name: {name!r} ")


@pytest.mark.parametrize("name", ["table-1/mini-imagenet-ta/er", "tiny,learner=my.Own", "käse 3", "...", "a..b"])
def test_a_name_that_is_one(name: str) -> None:
    assert parse({**BASE, "name": name}).name == name


def test_an_experiment_needs_a_name() -> None:
    with pytest.raises(ValueError, match=r"^name: "):
        parse({key: value for key, value in BASE.items() if key != "name"})


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--learner.encoder.width"], "--learner.encoder.width"),
        (["10"], "10"),
        (["-x", "1"], "-x"),
        (["--learner", "er", "--learner.lr", "0.1"], "--learner"),
        (["--learner.lr", "0.1", "--learner", "er"], "--learner"),
        (["--a.b.c", "1", "--a.b", "2"], "--a.b"),
        (["--a.b", "1", "--a.b.c.d", "2"], "--a.b"),
    ],
)
def test_a_command_line_that_is_none(words: list[str], option: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_flags(words)
    assert str(caught.value).startswith(f"{option}: ")


def test_an_optional_value_of_a_learner_of_ones_own_may_be_none(tmp_path: Path, monkeypatch) -> None:
    """`Any` and `| None` take an empty value: what `mapping` writes must be read back."""
    (tmp_path / "own_options.py").write_text(
        "from dataclasses import dataclass\nfrom typing import Any\nfrom dualnet import Finetune\n"
        "@dataclass(frozen=True)\nclass Config(Finetune.Config):\n"
        "    what: Any = None\n    limit: float | None = None\n"
        "class Own(Finetune):\n    Config = Config\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    parsed = parse(merge(BASE, {"learner": {"name": "own_options.Own"}}))
    assert parse(yaml.safe_load(yaml.safe_dump(parsed.mapping()))) == parsed
