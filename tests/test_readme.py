"""README.md is true: its experiment runs on a folder of images, its Python runs as written, its commands exist."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dualnet import cli
from dualnet.experiments.experiment import read
from dualnet.files import read_json
from dualnet.report.findings import findings
from dualnet.report.rows import compare
from dualnet.report.tables import METRICS, heading, results_table
from dualnet.reproduce import make_ledger, read_rows
from dualnet.reproduce.views import json_text
from dualnet.ttest import Sample, welch

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "results/README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


@pytest.fixture
def folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten classes of four images, and a photo, where the README says they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / f"path/to/folder/class-{number // 4}/{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(path)
    Image.fromarray(random.integers(0, 256, (50, 40, 3), dtype=np.uint8)).save(tmp_path / "photo.jpg")
    return tmp_path


def test_own_images_are_learned_and_answered(folder_of_images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (yaml,) = blocks("yaml")
    Path("mine.yaml").write_text(yaml)
    assert cli.main(["run", "mine.yaml", "--device", "cpu", "--benchmark.image_size", "32"]) == 0
    capsys.readouterr()
    assert cli.main(["predict", "runs/mine/seed-0", "photo.jpg", "--json"]) == 0
    exec(blocks("python")[0], {})
    out, err = capsys.readouterr()
    assert "class-" in out and err == "", "a photo has no task, and none is asked for"
    assert cli.main(["predict", "models/later", "photo.jpg"]) == 0


def test_own_batches_are_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    batches = [(torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8), torch.arange(8)) for _ in range(2)]
    names: dict[str, object] = {"my_batches": batches}
    exec(blocks("python")[1], names)
    assert isinstance(names["logits"], torch.Tensor) and names["logits"].shape == (8, 10)
    Image.new("RGB", (40, 50)).save("photo.jpg")
    assert cli.main(["predict", "models/own", "photo.jpg"]) == 0
    assert capsys.readouterr().out.startswith("photo.jpg: class ")


@pytest.mark.parametrize("verb", sorted(set(re.findall(r"^dualnet (\w+)", README, re.M))))
def test_commands_exist(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    assert "usage: dualnet" in capsys.readouterr().out


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


MARKS = {"reproduced": "=", "above": ">", "below": "<", "inconclusive": "?"}
METHODS = {"ER": "er", "DER++": "derpp", "MIR": "mir", "CTN": "ctn", "DualNet": "dualnet", "Offline": "offline"}
OBJECTIVES = {"Barlow Twins": "barlow-twins", "SimCLR": "simclr", "Classification": "classification"}
OPTIMIZERS = {"SGD": "sgd", "Look-ahead": "look-ahead"}
STREAMS = {
    "task-aware": "",
    "task-free": ", task-free",
    "task-aware, 10 % of the labels": ", 10 % labels",
    "25 %": ", 25 % labels",
}


def table(text: str, heading: str) -> list[dict[str, str]]:
    """The rows of the table whose first line begins with the heading: cells by the heading of their column."""
    lines = text[text.index(f"\n| {heading} |") + 1 :].partition("\n\n")[0].splitlines()
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(header, cells, strict=True)) for cells in rows]


def row_name(label: str) -> str:
    """The name in the ledger of a row that is labelled as in results/README.md."""
    label = label.partition(":")[0]
    if found := re.fullmatch(r"n=(\d+), (\d+) slots( per task)?", label):
        return f"table-3/memory-{found[2]}/n-{found[1]}"
    first, _, stream = label.partition(", ")
    if first in OBJECTIVES:
        return f"table-2/{OPTIMIZERS[stream]}/{OBJECTIVES[first]}"
    method = METHODS[first.removesuffix("-Aug")] + ("-aug" if first.endswith("-Aug") else "")
    if found := re.fullmatch(r"(\d+) % labels", stream):
        return f"table-4/labels-{found[1]}/{method}"
    number = 5 if method.startswith(("mir", "offline")) else 1
    return f"table-{number}/mini-imagenet-{ {'': 'ta', 'task-free': 'tf'}[stream] }/{method}"


def ledger_rows(name: str) -> dict[str, Any]:
    """The rows that have runs, by name."""
    rows = json.loads((ROOT / f"results/reproduce/{name}/ledger.json").read_text())["rows"]
    return {row["name"]: row for row in rows if row["seeds"]}


def test_the_papers_tables_are_those_of_the_ledger() -> None:
    """Every row that has runs, and no other: ACC, in brackets the published one, and the verdict."""
    rows, shown = ledger_rows("all"), {}
    for row in table(README, "Tables 1, 4, 5"):
        shown |= {row_name(row["Tables 1, 4, 5"] + stream): row[head] for head, stream in STREAMS.items() if row[head]}
        dualnet = row["Tables 1, 4, 5"] == "DualNet"
        assert row["width"] == ("64" if dualnet else "20")
    for objective, *cells in (row.items() for row in table(README, "Table 2: objective of the slow learner")):
        shown |= {row_name(f"{objective[1]}, {optimizer}"): cell for optimizer, cell in cells}
    for slots, *cells in (row.items() for row in table(README, "Table 3: slots per task")):
        shown |= {row_name(f"{n}, {slots[1]} slots"): cell for n, cell in cells}
    expected = {
        name: f"{acc['ours']['mean']:.1f} ({acc['published']['mean']:.1f}) {MARKS[row['verdict']]}"
        for name, row in rows.items()
        for acc in [row["metrics"]["ACC"]]
    }
    assert shown == expected and len(expected) == 38
    counts = [sum(row["verdict"] == verdict for row in rows.values()) for verdict in MARKS]
    assert "{} are reproduced, {} above, {} below and {} inconclusive".format(*counts) in README
    assert "{} are reproduced, {} above, {} below, {} inconclusive".format(*counts) in RESULTS


def test_the_rows_in_results_are_those_of_the_ledger() -> None:
    rows = ledger_rows("all")
    for cells in table(RESULTS, "row | seeds | ACC | FM | LA | the paper's ACC, FM, LA"):
        name = row_name(cells["row"])
        row = rows.pop(name)
        acc, fm, la = row["metrics"].values()
        published = ", ".join(mean(metric["published"]) for metric in (acc, fm, la))
        expected = [str(len(row["seeds"])), spread(acc["ours"]), mean(fm["ours"]), mean(la["ours"]), published]
        assert [*cells.values()][1:6] == expected, name
        assert cells["verdict"].partition(",")[0] == row["verdict"], name
        uses = row["runs_of"] if row["runs_of"] != name else None
        assert uses == ("table-1/mini-imagenet-ta/dualnet" if "the row DualNet" in cells["row"] else None), name
    assert not rows


def mean(sample: Mapping[str, float] | None) -> str:
    return "—" if sample is None else f"{sample['mean']:.2f}"


def spread(sample: Mapping[str, Any], digits: int = 2) -> str:
    """Mean and standard deviation; of a single run the value alone."""
    std = "" if sample["std"] is None else f" ± {sample['std']:.{digits}f}"
    return f"{sample['mean']:.{digits}f}{std}"


AUTHORS = {"strict": "tf", "labels-100": "ta"}  # the group of the row with the authors' settings, if it is another


def test_rows_beyond_the_paper_are_those_of_the_ledger() -> None:
    """The table of results/, with every row that has runs of its own."""
    found = ledger_rows("beyond")
    rows = {name: row for name, row in found.items() if row["runs_of"] == name}
    for cells in table(RESULTS, "row | seeds | ACC | FM | LA | aim"):
        name = "beyond/" + cells["row"].partition("`")[2].partition("`")[0]
        row = rows.pop(name)
        acc, fm, la = (metric["ours"] for metric in row["metrics"].values())
        assert [*cells.values()][1:5] == [str(len(row["seeds"])), spread(acc), mean(fm), mean(la)], name
        group = name.split("/")[1]
        if cells["the paper"] or cells["DualNet with the authors' settings, here"]:
            authors = found[f"beyond/{AUTHORS.get(group, group)}/paper"]["metrics"]["ACC"]
            assert cells["the paper"] == mean(authors["published"]), name
            assert cells["DualNet with the authors' settings, here"] in ("", spread(authors["ours"])), name
    assert not rows


def test_differences_in_the_readme_are_those_of_the_ledger() -> None:
    def acc(name: str) -> Sample:
        table = name if name.startswith("table") else f"beyond/{name}"
        ours = (ledger_rows("all") | ledger_rows("beyond"))[table]["metrics"]["ACC"]["ours"]
        return Sample(ours["mean"], ours["std"], ours["size"])

    def difference(one: str, other: str) -> str:
        found = welch(acc(one), acc(other))
        return f"{found.mean:.1f} ± {found.half_width:.1f}"

    text = " ".join(README.split())
    assert f"by {difference('labels-10/chosen', 'labels-10/replayed')} points with one batch in ten" in text
    assert f"by {difference('ta/chosen-slow', 'ta/chosen')} with all labels" in text
    assert f"behind** DER++ (by {difference('tf/derpp', 'tf/chosen')})" in text
    assert f"and ER ({difference('tf/er', 'tf/chosen')}, p 0.051)" in text
    equal_cost = acc("ta/chosen-equal-cost")
    below = difference("ta/chosen-slow", "ta/chosen-equal-cost")
    assert f"DualNet has {equal_cost.mean:.1f} ± {equal_cost.std:.1f}, which is {below} below" in text
    n_0 = acc("ta/paper-n-0")
    assert f"without it (n=0) DualNet has {n_0.mean:.1f} ± {n_0.std:.1f}." in text
    more = [difference(f"table-3/memory-50/n-{n}", "ta/paper-n-0") for n in (10, 20)]
    assert "n=10 and n=20 have {} and {} more".format(*more) in text
    assert f"no gain is shown ({difference('table-3/memory-50/n-3', 'ta/paper-n-0')}," in text
    costs = [f"{acc(f'labels-10/{name}-cost-of-n-2').mean:.1f}" for name in ("replayed", "derpp", "er")]
    assert f"per batch ({acc('labels-10/n-2').mean:.1f};" in text
    assert "without them has {}, DER++ {}, ER {}.".format(*costs) in text


WIDTH_64 = {
    "DualNet with self-supervision": ("ta/chosen-slow", "labels-10/chosen", "labels-25/chosen", ""),
    "DualNet without it": ("ta/chosen", "labels-10/replayed", "labels-25/replayed", "tf/chosen"),
    "CTN": ("ta/ctn", "", "", ""),
    "DER++": ("ta/derpp", "labels-10/derpp", "labels-25/derpp", "tf/derpp"),
    "ER": ("ta/er", "labels-10/er", "labels-25/er", "tf/er"),
    "DualNet, the authors' settings": ("ta/paper", "labels-10/paper", "labels-25/paper", "tf/paper"),
}


def test_what_to_expect_is_that_of_the_ledger() -> None:
    rows, streams = (
        ledger_rows("beyond"),
        ("task given", "task given, 10 % of the labels", "task given, 25 %", "task unknown"),
    )
    for (method, names), cells in zip(WIDTH_64.items(), table(README, "method | task given"), strict=True):
        assert cells["method"] == method
        for name, stream in zip(names, streams, strict=True):
            row, cell = rows.get(f"beyond/{name}"), cells[stream]
            assert cell == spread(row["metrics"]["ACC"]["ours"], 1) if row else cell in ("", "not run"), (method, name)


@pytest.mark.parametrize("table", ["all", "beyond"])
def test_the_ledger_is_that_of_the_runs(table: str) -> None:
    """Also fails if an option is new and older runs count as having another value, see DIGEST_DEFAULTS."""
    ledger = make_ledger(read_rows(table), ROOT / "results/reproduce", "authors", 2.0)
    assert json_text(ledger) == (ROOT / f"results/reproduce/{table}/ledger.json").read_text()
    assert not [entry.name for entry in ledger.entries if entry.options_changed]


def test_every_run_has_the_name_of_its_row() -> None:
    """Otherwise `dualnet reproduce` refuses to continue it."""
    runs = ROOT / "results/reproduce"
    files = list(runs.glob("*/*/*/seed-*/experiment.yaml"))
    assert len(files) > 250
    for file in files:
        name = file.read_text().partition("\n")[0].removeprefix("name: ")
        assert name == file.parent.parent.relative_to(runs).as_posix()


def test_the_ledger_has_every_run_that_was_replaced() -> None:
    runs = ROOT / "results/reproduce"
    ledger = json.loads((runs / "all/ledger.json").read_text())
    rows = [row for row in ledger["rows"] if row["runs_of"] == row["name"]]
    listed = [
        f"{row['name']}/earlier/{earlier['name']}/seed-{seed}"
        for row in rows
        for earlier in row["earlier"]
        for seed in earlier["seeds"]
    ]
    files = list(runs.glob("table-*/*/*/earlier/*/*/result.json"))
    assert sorted(listed) == sorted(file.parent.relative_to(runs).as_posix() for file in files) and len(files) >= 67
    results = [file.read_bytes() for file in runs.rglob("result.json")]
    assert len(set(results)) == len(results), "no run is listed twice"


def test_the_report_of_results_has_every_run() -> None:
    """results/report.md is made by hand (`dualnet report results`) when runs are added."""
    page = (ROOT / "results/report.md").read_text()
    with pytest.warns(UserWarning, match="replaced runs left out"):
        comparison = compare([ROOT / "results"])
    for row in comparison.rows:
        assert f"| {row.label} |" in page, f"{row.label}: make results/report.md again"


SEARCHES = ("few-labels-er", "few-labels-dualnet")


def test_demo_figures_are_those_of_its_committed_runs() -> None:
    """Each line of the table: name, ACC, FM, LA and the images forward; and the sentence that says who is ahead."""
    comparison = compare([ROOT / "results/demo"])
    table = results_table(comparison.rows, comparison)
    shown = [table.header.index(name) for name in (*map(heading, METRICS), "fwd")]
    lines = [line for line in table.texts if line[0] != "chance"]
    expected = [" | ".join([line[0], *(line[column] for column in shown)]) for line in lines]
    written = [line.strip("| ").replace("*", "") for line in README.splitlines() if line.startswith("| few-labels-")]
    assert sorted(written) == sorted(expected) and len(written) == 4
    (note,) = findings(comparison)
    assert note in " ".join(README.split())


@pytest.mark.parametrize("name", SEARCHES)
def test_demo_runs_what_its_search_chose(name: str) -> None:
    def options(source: str) -> Mapping[str, object]:
        return read(source).mapping() | {"name": ""}

    assert options(name) == options(str(ROOT / f"results/search/{name}/chosen.yaml"))


def test_demo_without_the_slow_phase_is_else_the_same() -> None:
    one, other = read("few-labels-dualnet", {"learner": {"slow_rounds": 0}}), read("few-labels-dualnet-n0")
    assert one.mapping() | {"name": ""} == other.mapping() | {"name": ""}


@pytest.mark.parametrize("name", SEARCHES)
def test_the_size_of_the_demo_search_is_stated(name: str) -> None:
    found = read_json(ROOT / f"results/search/{name}/search.json")
    points = {point["folder"] for stage in found["stages"] for point in stage["points"]}
    assert f"{len(points)} points" in README
    assert found["complete"] and found["seeds"] == [0, 1, 2]
