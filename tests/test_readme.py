"""README.md, docs/own-images.md and docs/tutorials are true: what they show runs as written."""

import re
import shlex
import subprocess
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from run_fixtures import result_of

from dualnet import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def draw_classes(folder: Path, names: str) -> None:
    random = np.random.default_rng(0)
    for name in names.split():
        (folder / name).mkdir(parents=True)
        for number in range(8):
            pixels = random.integers(0, 256, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def test_the_commands_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    draw_classes(Path("photos"), "cup lamp")
    draw_classes(Path("new-photos"), "clock")
    Image.new("RGB", (50, 40)).save("clock.jpg")
    commands = [line.split()[2:] for line in blocks("console")[0].splitlines() if line.startswith("$ dualnet ")]
    assert len(commands) == 3
    for words in commands:
        assert cli.main(words) == 0, words
    assert "3 classes, 1 of them new (clock)" in capsys.readouterr().out


def test_the_experiment_and_the_python_of_own_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    page = (ROOT / "docs/own-images.md").read_text()
    draw_classes(Path("photos"), "cat dog")
    Path("mine.yaml").write_text(*blocks("yaml", page))
    assert cli.main(["run", "mine.yaml", "--learner.name", "finetune", "--learner.encoder.weights", "starter"]) == 0
    Path("unsorted").mkdir()
    for photo in ("a.jpg", "b.jpg", "c.jpg", "unsorted/d.jpg"):
        Image.new("RGB", (50, 40)).save(photo)
    exec(blocks("python", page)[-1], {})  # tests/models/test_onnx.py runs the other one
    assert cli.main(["show", "models/mine"]) == 0


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 1000


TUTORIALS = ROOT / "docs/tutorials"
FENCED = re.compile(r"(?:`([\w.]+\.\w+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.M | re.S)  # after its file name


def follow(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Do what a tutorial says. What it shows is printed, but decimals may depend on the processor."""
    printed = ""
    for name, language, code in FENCED.findall(page.read_text()):
        if name:
            Path(name).write_text(code)
        elif language == "python":
            exec(code, {})
        elif language == "text":
            shown = without_decimals(printed)
            assert [line for line in without_decimals(code) if line not in shown] == [], printed
        elif language == "sh":
            printed = "".join(map(printed_by, code.splitlines(), repeat(capsys)))


def printed_by(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    program, *words = shlex.split(line.removeprefix("PYTHONPATH=. "), comments=True)
    if program == "dualnet":
        assert cli.main(words) == 0, line
    elif program != "pip":
        subprocess.run([program, *words], check=True)
    return "".join(capsys.readouterr())


def without_decimals(text: str) -> list[str]:
    """The lines, with equal spaces and lines of tables."""
    lines = re.sub(r"[\d.]+\.\d+(±[\d.]+)?", "#", text).splitlines()
    return [" ".join(re.sub("─+", "─", line).split()) for line in lines]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_the_tutorial_on_photos(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    follow(TUTORIALS / "photos.md", capsys)
    classes = Path("classes.csv").read_text()
    assert "pagoda" in classes and len(classes.splitlines()) == 32


def test_the_tutorials_on_streams(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    follow(TUTORIALS / "compare.md", capsys)
    follow(TUTORIALS / "method.md", capsys)
    plain, same = (result_of(here / "runs" / name / "seed-0") for name in ("er", "gamma-0"))
    assert plain["accuracy"] == same["accuracy"]  # as the page says
    assert Path("compare.svg").exists() and Path("method.svg").exists() and Path("focal.onnx").exists()
