"""Every test of the command line works in a folder of its own."""

from pathlib import Path

import pytest
import yaml
from commands import TINY, picture

from dualnet import cli


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, with the tiny experiment, one image, and its own cache of images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("warnings.showwarning", cli.show_warning)  # put back after the test
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
    picture(Path("image.png"), seed=0)
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be read only."""
    out = tmp_path_factory.mktemp("trained")
    (out / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    assert cli.main(["run", str(out / "tiny.yaml"), "--out", str(out), "--device", "cpu"]) == 0
    return out / "seed-0"
