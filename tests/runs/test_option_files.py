"""Files of options: one reader for all of them, which loses nothing that they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualnet.runs.option_files import find, read_yaml, shipped_files

TWICE = {
    "a: 1\nb: 2\na: 3\n": "line 3: `a` is given twice",
    "s:\n  a: 1\n  'a': 3\n": "line 3: `a` is given twice",
    "s: {a: 1, b: 1, a: 1}\n": "line 1: `a` is given twice",
    "list:\n- {a: 1}\n- {a: 1, a: 2}\n": "line 3: `a` is given twice",
    "1: x\n1: y\n": "line 2: `1` is given twice",
}


@pytest.mark.parametrize("text", TWICE)
def test_a_key_is_given_once(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ValueError) as caught:
        read_yaml(file, "x.yaml")
    assert str(caught.value) == f"{file}: {TWICE[text]}; keep one of them"


def test_what_a_merge_brings_may_be_said_again(tmp_path: Path) -> None:
    """Also where what is merged has merged itself."""
    file = tmp_path / "mine.yaml"
    file.write_text("a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b, x: 3}\nd: {<<: [*a, *b], 1: x, '1': y}\n")
    content = read_yaml(file, "x.yaml")
    assert (content["b"], content["c"]) == ({"x": 1, "y": 2}, {"x": 3, "y": 2})
    assert content["d"] == {"x": 1, "y": 1, 1: "x", "1": "y"}


@pytest.mark.parametrize("below", ["", "search", "tables"])
def test_no_shipped_file_says_anything_twice(below: str) -> None:
    assert shipped_files(below)
    for file in shipped_files(below):
        read_yaml(file, "x.yaml")


def test_a_shipped_name_goes_before_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo-er").mkdir()
    assert find("demo-er", shipped_files(), "experiment") in shipped_files()
