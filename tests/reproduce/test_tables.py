"""The shipped tables: 54 rows with what the paper publishes of them, and how a table's file becomes experiments."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualnet.experiments.experiment import read
from dualnet.experiments.manifest import FIELDS
from dualnet.learners import LEARNERS
from dualnet.report.tables import METRICS
from dualnet.reproduce.ledger import read_published
from dualnet.reproduce.table_file import PAPER, SETTINGS, read_rows, read_table, select
from dualnet.ttest import Sample

ROWS = {settings: {row.name: row for row in read_rows("all", settings)} for settings in SETTINGS}
PUBLISHED, MISSING = read_published()
SMALL = {row.name: row for row in read_table("small-table-1", "authors")}


def test_the_paper_s_54_rows() -> None:
    assert len(ROWS["authors"]) == 54 and list(ROWS["paper"]) == list(ROWS["authors"])
    counts = {table: sum(name.startswith(f"{table}/") for name in ROWS["authors"]) for table in PAPER}
    assert counts == {"table-1": 24, "table-2": 6, "table-3": 8, "table-4": 8, "table-5": 8}
    assert set(PUBLISHED) == set(ROWS["authors"]), "every row has a published value, and every value a row"
    assert not set(MISSING) & set(PUBLISHED)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ROWS["authors"])
def test_every_row_is_an_experiment(name: str, settings: str) -> None:
    made = ROWS[settings][name].experiment()
    assert made.name == ROWS[settings][name].runs_of


def test_the_small_table_has_every_learner_under_both_protocols() -> None:
    pretrained = {"slda"}  # needs an encoder that is
    assert {row.experiment().benchmark_name for row in SMALL.values()} == {"procedural"}
    for group, without in (("task-aware", pretrained), ("task-free", {"ctn", *pretrained})):
        rows = [row for row in SMALL.values() if row.group.endswith(group)]
        names = {row.options["learner"]["name"] for row in rows}
        assert names >= set(LEARNERS) - without and not names & without
        assert {row.options["learner"].get("augment", "none") for row in rows} >= {"none"}
    assert {row.num_seeds for row in SMALL.values()} == {3}


SPOT = {
    "table-1/mini-imagenet-ta/er": (5, [(53.43, 1.18), (11.21, 1.35), (63.46, 1.05)], "tab:main, line 200"),
    "table-1/mini-imagenet-tf/dualnet": (3, [(37.56, 0.52), (29.46, 1.68), (65.00, 1.79)], "tab:main, line 206"),
    "table-1/core50-ta/er-aug": (5, [(44.16, 2.05), (5.72, 0.02), (47.83, 1.61)], "tab:main, line 210"),
    "table-1/core50-tf/derpp-aug": (3, [(28.10, 0.80), (10.43, 2.10), (36.16, 0.19)], "tab:main, line 212"),
    "table-2/sgd/barlow-twins": (5, [(64.20, 2.37), (4.79, 1.19), (64.83, 1.67)], "tab:slow-obj, line 234"),
    "table-2/look-ahead/classification": (5, [(70.96, 1.08), (6.33, 0.28), (73.92, 1.14)], "tab:slow-obj, line 236"),
    "table-3/memory-100/n-20": (5, [(77.86, 0.43), (3.01, 0.27), (75.96, 0.97)], "tab:slow-iter, line 255"),
    "table-4/labels-25/ctn": (3, [(55.90, 0.86), (3.84, 0.32), (55.69, 0.98)], "tab:semi, line 276"),
    "table-5/core50-tf/mir": (3, [(23.88, 0.65), (11.48, 1.17), (32.12, 1.07)], "tab:additional, line 425"),
}


@pytest.mark.parametrize("name", SPOT)
def test_published_values(name: str) -> None:
    runs, values, source = SPOT[name]
    published = PUBLISHED[name]
    assert (published.runs, published.source) == (runs, source)
    assert published.metrics == {name: Sample(*value, runs) for name, value in zip(METRICS, values, strict=True)}


def test_what_is_printed_otherwise_is_said() -> None:
    assert PUBLISHED["table-2/sgd/barlow-twins"].note == "printed as 64.20/-2.37"
    assert "DER" in PUBLISHED["table-1/core50-ta/derpp"].note
    assert PUBLISHED["table-5/core50-ta/offline"].metrics == {"ACC": Sample(58.69, 0.41, 5)}
    assert MISSING["table-1/core50-tf/ctn-aug"].startswith("N/A")


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_protocol_is_a_part_of_a_manifest(name: str) -> None:
    published = PUBLISHED[name]
    assert set(published.protocol) <= set(FIELDS)
    assert published.protocol["label_share"] == (0.1 if "labels-10" in name else 0.25 if "labels-25" in name else 1.0)
    assert ("split" in published.protocol) == ("core50" not in name)


def test_what_neither_the_paper_nor_the_authors_code_gives() -> None:
    silent = {name for name, published in PUBLISHED.items() if published.not_published}
    task_free = {name for name in PUBLISHED if "-tf/" in name and not name.endswith("/dualnet")}
    assert silent == task_free | {name for name in PUBLISHED if name.endswith(("/derpp", "/derpp-aug", "/ctn-aug"))}


def test_the_paper_leaves_updates_of_dualnet_and_derpp_open() -> None:
    for row, unknown in (("er", False), ("ctn", False), ("derpp", True), ("dualnet", True)):
        assert ("updates" not in PUBLISHED[f"table-1/mini-imagenet-ta/{row}"].protocol) == unknown


@pytest.mark.parametrize(
    ("name", "settings", "way", "value"),
    [
        ("table-1/mini-imagenet-ta/dualnet", "paper", "learner.encoder.width", 20),
        ("table-1/mini-imagenet-ta/dualnet", "paper", "learner.slow.beta", 0.5),
        ("table-1/mini-imagenet-ta/dualnet", "paper", "learner.soft_labels.weight", 2.0),
        ("table-1/mini-imagenet-tf/dualnet", "paper", "learner.soft_labels.weight", 2.0),
        ("table-1/core50-ta/dualnet", "authors", "learner.replay_size", 32),
        ("table-1/core50-tf/dualnet", "authors", "learner.replay_size", 10),
        ("table-1/core50-tf/dualnet", "authors", "learner.slow.beta", 0.05),
        ("table-1/core50-tf/dualnet", "authors", "batch_size", 10),
        ("table-1/core50-tf/dualnet", "paper", "batch_size", 32),
        ("table-4/labels-25/dualnet", "paper", "learner.slow.rounds", 3),
        ("table-1/mini-imagenet-tf/dualnet", "paper", "protocol", "task_free"),
        ("table-1/mini-imagenet-tf/er-aug", "paper", "learner.augment", "random_crop"),
        ("table-1/mini-imagenet-tf/derpp-aug", "authors", "learner.crop_area", [0.08, 1.0]),
        ("table-4/labels-25/derpp", "paper", "learner.replay_weight", 1.0),
        ("table-2/sgd/simclr", "authors", "learner.slow.inner_steps", 1),
        ("table-2/sgd/simclr", "authors", "learner.slow.objective_options.similarity", "standardised"),
        ("table-2/look-ahead/simclr", "authors", "learner.slow.inner_steps", 2),
        ("table-3/memory-100/n-3", "authors", "learner.slow.objective_options.correlation", "sample"),
        ("table-1/mini-imagenet-ta/dualnet", "paper", "learner.slow.objective_options.correlation", "uncentred"),
        ("table-1/mini-imagenet-ta/dualnet", "paper", "learner.slow.inner_steps", 1),
        ("table-1/mini-imagenet-ta/dualnet", "paper", "learner.memory.replay", "all"),
        ("table-1/mini-imagenet-ta/dualnet", "paper", "learner.soft_labels.order", "current_first"),
        ("table-1/mini-imagenet-ta/dualnet", "authors", "learner.views.library", "kornia"),
        ("table-1/mini-imagenet-ta/dualnet", "authors", "learner.memory.replay_from", "second_task"),
        ("table-1/mini-imagenet-ta/ctn", "authors", "learner.memory.replay_from", "second_task"),
        ("table-1/mini-imagenet-ta/ctn", "authors", "learner.memory.replay", "earlier_tasks"),
        ("table-1/mini-imagenet-tf/dualnet", "authors", "learner.soft_labels.missing", "slot"),
        ("table-1/mini-imagenet-tf/dualnet", "authors", "learner.normalisation", "half"),
        ("table-1/mini-imagenet-ta/dualnet", "authors", "learner.normalisation", "imagenet"),
        ("table-1/core50-ta/dualnet", "authors", "learner.slow.beta", 0.1),
        ("table-1/core50-ta/dualnet", "authors", "learner.slow.lr", 0.0001),
        ("table-1/core50-ta/dualnet", "paper", "learner.encoder.width", 64),
        ("table-1/core50-ta/dualnet", "paper", "learner.slow.lr", 0.0003),
        ("table-1/core50-ta/ctn", "authors", "learner.inner_steps", 1),
        ("table-1/core50-ta/er", "authors", "batch_size", 32),
        ("table-1/core50-tf/dualnet", "authors", "learner.memory.slots_per_class", 100),
        ("table-4/labels-25/dualnet", "paper", "labels.drawn_per", "sample"),
        ("table-5/core50-ta/offline", "paper", "learner.epochs", 3),
    ],
)
def test_settings_of_a_row(name: str, settings: str, way: str, value: Any) -> None:
    option: Any = ROWS[settings][name].experiment().mapping()
    for part in way.split("."):
        option = option[part]
    assert option == value


def test_rows_of_one_experiment_share_their_runs() -> None:
    shared = {
        settings: {name: row.runs_of for name, row in rows.items() if row.runs_of != name}
        for settings, rows in ROWS.items()
    }
    both = ["table-2/look-ahead/barlow-twins", "table-3/memory-50/n-3"]
    assert shared["paper"] == shared["authors"] == dict.fromkeys(both, "table-1/mini-imagenet-ta/dualnet")


@pytest.mark.parametrize("name", ["er", "ctn"])
def test_an_experiment_has_the_options_of_its_row(name: str) -> None:
    alone = read(f"mini-imagenet-ta-{name}")
    row = ROWS["authors"][f"table-1/mini-imagenet-ta/{name}"].experiment({"benchmark": {"root": "data/mini-imagenet"}})
    assert row == dataclasses.replace(alone, name=row.name)


@pytest.mark.parametrize(
    ("patterns", "count"),
    [
        ([], 24),
        (["mini-imagenet-ta/er"], 1),
        (["table-1/mini-imagenet-ta/er"], 1),
        (["*/er", "*/er-aug"], 8),
        (["*"], 24),
    ],
)
def test_rows_by_name(patterns: list[str], count: int) -> None:
    assert len(select(read_table("table-1", "authors"), patterns)) == count


GOOD = {"groups": {"g": {"shared": {"learner": {"name": "er"}}, "rows": {"a": {}, "b": {"batch_size": 20}}}}}
BAD_TABLES: dict[str, tuple[Any, str]] = {
    "a list": ([1], "mapping"),
    "no groups": ({"title": "x"}, "groups: a section with at least one entry is needed"),
    "a group is no section": ({"groups": {"g": 3}}, "g: options are needed, not 3"),
    "no rows": ({"groups": {"g": {}}}, "rows: a section with at least one entry is needed"),
    "a row is no section": ({"groups": {"g": {"rows": {"a": 3}}}}, "bad/g/a: options are needed, not 3"),
    "typo": ({**GOOD, "setings": {}}, "setings: unknown option"),
    "typo in a group": ({"groups": {"g": {"row": {"a": {}}}}}, "g.row: unknown option; did you mean g.rows?"),
    "layer is a number": ({**GOOD, "shared": 3}, "shared: options are needed, not 3"),
    "settings are a number": (
        {"groups": {"g": {"rows": {"a": {"authors": 3}}}}},
        "bad/g/a: authors: options are needed, not 3",
    ),
    "like a row of a missing group": (
        {"groups": {"g": {"rows": {"a": {"like": "bad/h/a"}}}}},
        "bad/g/a: like: no such row 'bad/h/a'",
    ),
    "no seeds": ({**GOOD, "seeds": 0}, "seeds: 0 "),
    "seeds are no number": ({**GOOD, "seeds": True}, "seeds: "),
    "like nothing": ({**GOOD, "like": "bad/g/z"}, "bad/g/a: like: no such row 'bad/g/z'"),
    "like no row": ({**GOOD, "like": "g"}, "bad/g/a: like: no such row 'g'; rows are named table/group/row"),
    "like itself": ({**GOOD, "like": "bad/g/a"}, "bad/g/a: like: "),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_table_that_is_none(case: str, tmp_path: Path) -> None:
    content, line = BAD_TABLES[case]
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError) as caught:
        read_table(str(tmp_path / "bad.yaml"), "authors")
    assert line in str(caught.value) and "bad.yaml: " in str(caught.value)


def test_a_row_twice(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("groups:\n  g:\n    rows:\n      er: {batch_size: 10}\n      er: {batch_size: 20}\n")
    with pytest.raises(ValueError, match=r"t\.yaml: .*line 5: `er`"):
        read_table(str(file), "authors")


def test_names_may_be_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("groups: {10: {rows: {1: {batch_size: 20}, 2: {like: t/10/1}}}}\n")
    first, second = read_table(str(tmp_path / "t.yaml"), "authors")
    assert (first.name, second.name) == ("t/10/1", "t/10/2")
    assert (second.runs_of, second.options) == ("t/10/1", {"batch_size": 20})


def test_what_a_row_begins_with(tmp_path: Path) -> None:
    """Table, group, the row it is like, itself; the settings after each of them."""
    content = {
        "shared": {"a": "table", "b": "table", "c": "table", "d": "table"},
        "paper": {"b": "table, paper", "c": "table, paper", "d": "table, paper"},
        "groups": {
            "g": {
                "shared": {"c": "group", "d": "group"},
                "rows": {"one": {"d": "one", "paper": {"e": "one, paper"}}, "two": {"like": "t/g/one"}},
            },
            "h": {"rows": {"three": {"like": "t/g/two", "authors": {"e": "three, authors"}}}},
        },
    }
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(content))
    paper = {row.name.rpartition("/")[2]: row for row in read_table(str(tmp_path / "t.yaml"), "paper")}
    authors = {row.name.rpartition("/")[2]: row for row in read_table(str(tmp_path / "t.yaml"), "authors")}
    assert paper["one"].options == {"a": "table", "b": "table, paper", "c": "group", "d": "one", "e": "one, paper"}
    assert paper["two"].options == paper["one"].options and paper["two"].runs_of == "t/g/one"
    assert (
        paper["three"].options == {**paper["one"].options, "c": "table, paper"}
        and paper["three"].runs_of == "t/h/three"
    )
    assert authors["three"].options == {"a": "table", "b": "table", "c": "table", "d": "one", "e": "three, authors"}


def test_the_table_in_the_documentation(tmp_path: Path) -> None:
    page = Path(__file__).parent.parent.parent / "docs/reproduce.md"
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S)
    (tmp_path / "mine.yaml").write_text(block)
    rows = {row.name: row.experiment() for row in read_rows(str(tmp_path / "mine.yaml"))}
    assert {name: each.learner.memory.policy for name, each in rows.items()} == {
        "mine/task-free/reservoir": "auto",
        "mine/task-free/balanced": "balanced",
    }


def test_the_small_table_of_few_and_late_labels() -> None:
    rows = {row.name.partition("/")[2]: row.experiment() for row in read_table("small-table-4", "authors")}
    assert {rows[name].labels.share for name in ("share-10/er", "share-25/er", "share-100/er")} == {0.1, 0.25, 1.0}
    assert rows["late/dualnet"].labels.delay == 20 and rows["late/dualnet"].learner.slow.source == "memory_and_batch"


def test_beyond_stands_beside_published_rows_and_shares_the_paper_s_runs() -> None:
    published, _ = read_published()
    rows = {row.name: row for row in read_rows("beyond")}
    for row in rows.values():
        row.experiment({"benchmark": {"root": "x"}})
        if row.name.startswith(("beyond/labels-5/", "beyond/labels-50/")):  # shares that the paper does not have
            continue
        name = row.name.rpartition("/")[2].partition("-")[0]
        assert row.compared_with in published
        assert row.compared_with.endswith(f"/{name}" if name in ("er", "derpp", "ctn") else "/dualnet")
    assert rows["beyond/ta/paper"].runs_of == "table-1/mini-imagenet-ta/dualnet"
    assert read_rows("table-1")[0].compared_with is None


def test_the_compared_additions_are_the_same_for_every_learner() -> None:
    """Of `chosen`, ER and DER++ of a stream: width, updates, replay and every addition; DualNet's own options apart."""
    rows = {row.name: row for row in read_rows("beyond")}
    shared = (
        "encoder",
        "lr",
        "updates",
        "replay_size",
        "ema_rate",
        "joint_statistics",
        "augment",
        "unlabelled",
        "memory",
    )
    for group in ("ta", "tf", "labels-10", "labels-10-sample", "labels-25", "labels-25-sample"):
        learners = [
            rows[f"beyond/{group}/{name}"].experiment({"benchmark": {"root": "x"}}).mapping()["learner"]
            for name in ("chosen", "er", "derpp")
        ]
        for option in shared:
            assert len({str(learner[option]) for learner in learners}) == 1, (group, option)
