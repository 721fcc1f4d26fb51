"""README.md is true: its experiment runs on a folder of images, its Python runs as written, its commands exist."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dualnet import cli
from dualnet.files import read_json
from dualnet.report.findings import findings
from dualnet.report.rows import compare
from dualnet.report.tables import RESULT_HEADER, results_table
from dualnet.reproduce import make_ledger, read_rows
from dualnet.reproduce.views import json_text
from dualnet.runs.experiment import read

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


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


GROUPS = {
    "Task-aware": "table-1/mini-imagenet-ta",
    "Task-free": "table-1/mini-imagenet-tf",
    "Task-aware, 10 % of the batches labelled": "table-4/labels-10",
}
METHODS = {"ER": "er", "DER++": "derpp", "CTN": "ctn", "DualNet (n=3)": "dualnet", "DualNet (n=2)": "dualnet"}
OF_TABLE_3 = {"DualNet (n=10)": "table-3/memory-50/n-10", "DualNet (n=20)": "table-3/memory-50/n-20"}


def figures() -> dict[str, list[str]]:
    """The cells of the README's result rows, by the row's name in the ledger."""
    found, group = {}, ""
    for line in README.partition("\n## Results")[2].partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        group = GROUPS.get(cells[0].strip("*"), group)
        if cells[0] in METHODS and group:
            found[f"{group}/{METHODS[cells[0]]}"] = cells[2:]
        if cells[0] in OF_TABLE_3:
            found[OF_TABLE_3[cells[0]]] = cells[2:]
    return found


@pytest.mark.parametrize("name", figures())
def test_results_are_those_of_the_ledger(name: str) -> None:
    ledger = json.loads((ROOT / "results/reproduce/all/ledger.json").read_text())
    (row,) = [row for row in ledger["rows"] if row["name"] == name]
    metrics = row["metrics"].values()
    ours = [f"{metric['ours']['mean']:.2f} ± {metric['ours']['std']:.2f}" for metric in metrics]
    paper = ", ".join(f"{metric['published']['mean']:.2f}" for metric in metrics)
    assert figures()[name] == [str(len(row["seeds"])), *ours, paper, row["verdict"]]


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


def test_every_kind_of_row_is_compared_with_the_ledger() -> None:
    assert len(figures()) == 13


BEYOND = (
    *("ta/chosen-slow", "ta/chosen", "ta/er", "ta/derpp", "ta/ctn"),
    *("labels-10/chosen", "labels-10/replayed", "labels-10/er", "labels-10/derpp"),
    *("labels-10/n-2", "labels-10/replayed-cost-of-n-2", "labels-10/er-cost-of-n-2", "labels-10/derpp-cost-of-n-2"),
    *("labels-25/chosen", "labels-25/replayed", "tf/chosen", "tf/er", "tf/derpp"),
)


def test_results_beyond_the_paper_are_those_of_the_ledger() -> None:
    """The lines of the second table, and the paper's options on the same stream."""
    ledger = json.loads((ROOT / "results/reproduce/beyond/ledger.json").read_text())
    rows = {row["name"]: row for row in ledger["rows"]}
    table = README.partition("| method | seeds |")[2].partition("\n\n")[0].splitlines()[2:]
    for line, name in zip(table, BEYOND, strict=True):
        acc, fm, la = (metric["ours"] for metric in rows[f"beyond/{name}"]["metrics"].values())
        group, _, row = name.partition("/")
        paper = rows[f"beyond/{group}/paper"] if row == ("chosen-slow" if group == "ta" else "chosen") else None
        with_spread = [acc, *([paper["metrics"]["ACC"]["ours"]] if paper else [])]
        first, *rest = [f"{value['mean']:.2f} ± {value['std']:.2f}" for value in with_spread]
        seeds = str(len(rows[f"beyond/{name}"]["seeds"]))
        expected = [seeds, first, f"{fm['mean']:.2f}", f"{la['mean']:.2f}", *(rest or [""])]
        assert [cell.strip() for cell in line.strip("|").split("|")][1:] == expected


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
    shown = [table.header.index(name) for name in (*RESULT_HEADER[1:4], "fwd")]
    lines = [line for line in table.rows if line[0] != "chance"]
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
