"""Files of options: those that are shipped, and how they are found by name."""

from pathlib import Path

import pytest

from dualnet.experiments.named_files import find, shipped_files
from dualnet.files import read_yaml


@pytest.mark.parametrize("below", ["", "search", "tables"])
def test_no_shipped_file_says_anything_twice(below: str) -> None:
    assert shipped_files(below)
    for file in shipped_files(below):
        read_yaml(file)


def test_a_shipped_name_goes_before_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo-er").mkdir()
    assert find("demo-er", shipped_files(), "experiment") in shipped_files()
