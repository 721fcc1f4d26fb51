"""README.md, docs/own-images.md and docs/tutorials/photos.md are true: what they show runs as written."""

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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


def test_the_commands_and_the_python_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    draw_classes(Path("photos"), "cup lamp")
    draw_classes(Path("new-photos"), "clock")
    for photo in ("clock.jpg", "photo.jpg"):
        Image.new("RGB", (50, 40)).save(photo)
    _, commands, *_ = blocks("sh")
    for line in commands.splitlines():
        assert cli.main(line.split()[1:]) == 0, line
    assert "3 classes, 1 of them new (clock)" in capsys.readouterr().out
    exec(blocks("python")[0], {})
    assert cli.main(["show", "models/later"]) == 0 and "owl" in capsys.readouterr().out


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


def test_the_tutorial_runs_as_written_and_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Except for shares, whose last digit may depend on the processor."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    page, printed = (ROOT / "docs/tutorials/photos.md").read_text(), ""
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.M | re.S):
        if language == "python":
            exec(code, {})
        elif language == "text":
            assert [line for line in without_shares(code) if line not in without_shares(printed)] == [], printed
            printed = ""
        for line in code.splitlines() if language == "sh" else ():
            program, *words = shlex.split(line, comments=True)
            if program == "dualnet":
                assert cli.main(words) == 0, line
            elif program != "pip":
                subprocess.run([program, *words], check=True)
        printed += capsys.readouterr().out
    assert "pagoda" in printed and len(Path("classes.csv").read_text().splitlines()) == 32


def without_shares(text: str) -> list[str]:
    return re.sub(r"\d+\.\d %", "%", text).splitlines()
