"""README.md is true: its experiment runs on a folder of images, its Python runs as written."""

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
