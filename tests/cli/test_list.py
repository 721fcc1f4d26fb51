"""`dualnet list`: everything that is registered, with options in the format of an experiment file."""

import re
from itertools import product

import pytest
import yaml

from dualnet import cli
from dualnet.data.benchmarks import BENCHMARKS
from dualnet.experiments.experiment import parse, read
from dualnet.experiments.named_files import shipped_files
from dualnet.learners import LEARNERS, presets
from dualnet.memory import MEMORIES
from dualnet.objectives import OBJECTIVES


def test_list_names_everything(capsys) -> None:
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    lines = re.sub(r"^  (\S+) +(\S.{8,})$", r"  - \1", out, flags=re.MULTILINE)  # the name, without its description
    sections = yaml.safe_load(lines)
    assert sections["experiments"] == sorted(file.stem for file in shipped_files())
    assert {"dualnet", "er", "finetune"} <= set(sections["learners"])
    assert "demo-er" in sections["searches"]
    assert {"table-1", "small-table-4"} <= set(sections["tables"])
    parts = {"learners", "objectives", "memories", "encoders", "benchmarks"}
    assert set(sections) == {"experiments", "searches", "tables", *parts}


def test_list_shows_an_experiment_that_can_be_run(capsys) -> None:
    assert cli.main(["list", "demo-dualnet"]) == 0
    assert parse(yaml.safe_load(capsys.readouterr().out)) == read("demo-dualnet")


@pytest.mark.parametrize("name", [*LEARNERS, *BENCHMARKS, *MEMORIES, *OBJECTIVES])
def test_list_shows_options_in_the_format_of_a_file(name: str, capsys) -> None:
    """With the default, the type and the comment of each option."""
    assert cli.main(["list", name]) == 0
    out = capsys.readouterr().out
    sections = yaml.safe_load(out)
    for key in ("benchmark", "learner"):
        sections[key] = {"name": {"benchmark": "procedural", "learner": "er"}[key]} | sections.get(key, {})
    if "root" in sections["benchmark"]:
        sections["benchmark"]["root"] = sections["benchmark"]["root"] or "somewhere"
    shown = parse({"name": "x", **sections})
    if name in LEARNERS:
        assert (shown.learner_name, shown.learner) == (name, LEARNERS[name].Config())
    assert out.startswith("# ") and len(out.splitlines()[0]) > 10
    lines = [line for line in out.splitlines()[1:] if not line.endswith(":") and " name: " not in line]
    assert all("  # " in line for line in lines)


def test_list_shows_the_comment_beside_an_option(capsys) -> None:
    assert cli.main(["list", "dualnet"]) == 0
    lines = {line.split(":")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert "# float" in lines["beta"] and "Look-ahead" in lines["beta"]
    assert "lambda_tr" in lines["weight"], "the comment of a default that takes several lines"
    assert "barlow_twins | simclr" in lines["objective"]
    assert "tuple[float, float]" in lines["crop_area"] and "[0.4307, 0.4307]" in lines["crop_area"]


@pytest.mark.parametrize("name", ["table-1", "mini-imagenet-ta-mir"])
def test_list_shows_a_table_or_a_search_as_its_file(name: str, capsys) -> None:
    assert cli.main(["list", name]) == 0
    assert {"groups", "grid", "stages"} & yaml.safe_load(capsys.readouterr().out).keys()


@pytest.mark.parametrize("name", presets.NAMES)
def test_list_shows_what_a_preset_sets_in_each_stream(name: str, capsys) -> None:
    assert cli.main(["list", name]) == 0
    head, *blocks = capsys.readouterr().out.split("\n\n")
    assert head.startswith(f"# The options that preset {name} of DualNet sets")
    shown = {line: yaml.safe_load(block) for block in blocks or [head] for line in block.splitlines() if line[0] == "#"}
    for protocol, (share, words) in product(presets.BEST, ((1.0, "at least 0.5"), (0.1, "below 0.5"))):
        options = shown[f"# protocol {protocol}, labels.share {words}:"] if blocks else yaml.safe_load(head)
        stream = {"name": "x", "benchmark": {"name": "procedural"}, "protocol": protocol, "labels": {"share": share}}
        assert parse(stream | options) == parse(stream | {"learner": {"name": "dualnet", "preset": name}})
    assert (len(blocks) > 0) == (name not in ("lda", "few_images", "live"))
