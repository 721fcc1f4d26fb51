"""README.md is true: its experiment runs on a folder of images, its Python runs as written, its commands exist."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dualnet import cli

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
    small = ["--benchmark.image_size", "32", "--learner.width", "2", "--learner.slow_rounds", "1"]
    assert cli.main(["run", "mine.yaml", "--device", "cpu", *small]) == 0
    capsys.readouterr()
    assert cli.main(["predict", "runs/mine/seed-0", "photo.jpg", "--json"]) == 0
    exec(blocks("python")[0], {})
    out, err = capsys.readouterr()
    assert "class-" in out and err == "", "a photo has no task, and none is asked for"
    assert cli.main(["predict", "models/mine", "photo.jpg"]) == 0


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


def figures() -> dict[str, list[str]]:
    """The cells of the README's result rows, by the row's name in the ledger."""
    found, group = {}, ""
    for line in README.partition("## Results")[2].partition("## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        group = GROUPS.get(cells[0].strip("*"), group)
        if cells[0] in METHODS and group:
            found[f"{group}/{METHODS[cells[0]]}"] = cells[2:]
    return found


@pytest.mark.parametrize("name", figures())
def test_results_are_those_of_the_ledger(name: str) -> None:
    ledger = json.loads((ROOT / "results/reproduce/all/ledger.json").read_text())
    (row,) = [row for row in ledger["rows"] if row["name"] == name]
    metrics = row["metrics"].values()
    ours = [f"{metric['ours']['mean']:.2f} ± {metric['ours']['std']:.2f}" for metric in metrics]
    paper = ", ".join(f"{metric['published']['mean']:.2f}" for metric in metrics)
    assert figures()[name] == [str(len(row["seeds"])), *ours, paper, row["verdict"]]


def test_every_kind_of_row_is_compared_with_the_ledger() -> None:
    assert len(figures()) == 10
