"""The reader of YAML and JSON files: what it accepts, and hostile files, each refused quickly in one line."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualnet.files import MAX_DEPTH, MAX_JSON_BYTES, MAX_YAML_BYTES, read_json, read_yaml

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
MERGE_BOMB = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))
YAML: dict[str, tuple[str | bytes, str]] = {  # what is in the file, and a word of the reason
    "alias bomb": (BOMB, "aliases"),
    "merge bomb": (MERGE_BOMB, "aliases"),
    "bool": ("a: !!bool foo", "foo"),
    "int": ("a: !!int ''", "tag"),
    "float": ("a: !!float x", "x"),
    "timestamp": ("a: !!timestamp x", "tag"),
    "binary": ("a: !!binary '*'", "read as a bytes"),
    "date": ("a: 2026-01-01", "date"),
    "set": ("a: !!set {x}", "set"),
    "object": ("a: !!python/object/apply:os.system [ls]", "os.system"),
    "deep flow": ("a: " + "[" * 1000 + "]" * 1000, str(MAX_DEPTH)),
    "very deep flow": ("a: " + "[" * 300_000, str(MAX_DEPTH)),
    "deep blocks": ("- " * 100_000 + "x", str(MAX_DEPTH)),
    "deep keys": ("? " * 100_000 + "x", str(MAX_DEPTH)),
    "deep by aliases": ("".join(f"a{n}: &a{n} [{f'*a{n - 1}' if n else 1}]\n" for n in range(60)), str(MAX_DEPTH)),
    "large": ("a: 1" + "0" * 400, "401"),
    "beyond 64 bits": ("a: -18446744073709551616", "20 digits"),
    "sexagesimal": ("a: 1" + ":1" * 300_000, "600001"),
    "infinite": ("a: 1.0e+400", "inf"),
    "infinity": ("a: [.inf]", "inf"),
    "not a number": ("a: {b: .nan}", "nan"),
    "bytes": (b"a: \xff", "byte 3"),
    "NUL": ("a: \0", "#x0000"),
    "10 MB": ("a: 1\n" + "# " * 5_000_000, str(MAX_YAML_BYTES)),
    "self-reference": ("a: &a [*a]", "itself"),
    "self-reference in a mapping": ("a: &a {b: {c: *a}}", "itself"),
    "self-merge": ("a: &a {<<: *a}", "itself"),
    "undefined alias": ("a: *b", "undefined alias"),
    "no mapping": ("[1]", "mapping"),
    "empty": ("", "mapping"),
    "torn": ("a: {b: 1", "line "),
    "two documents": ("a: 1\n---\nb: 1", "line 2"),
    "list as a key": ("[1]: 1", "unhashable"),
    "twice": ("a: 1\nb: 2\na: 3\n", "line 3: `a`"),
    "twice, quoted": ("s:\n  a: 1\n  'a': 3\n", "line 3: `a`"),
    "twice in a list": ("list:\n- {a: 1}\n- {a: 1, a: 2}\n", "line 3: `a`"),
    "twice, a number": ("1: x\n1: y\n", "line 2: `1`"),
}
JSON: dict[str, tuple[str | bytes, str]] = {
    "deep": ('{"a": ' + "[" * 60 + "]" * 60 + "}", str(MAX_DEPTH)),
    "very deep": ('{"a": ' + "[" * 200_000, "deep"),
    "large": ('{"a": 1' + "0" * 400 + "}", "401 digits"),
    "very large": ('{"a": 1' + "0" * 5000 + "}", "5001"),
    "infinite": ('{"a": 1e400}', "inf"),
    "not a number": ('{"a": [NaN]}', "nan"),
    "no object": ("[1]", "mapping"),
    "torn": ('{"a": 1', "line 1"),
    "empty": ("", "line 1"),
    "bytes": (b'{"a": "\xff"}', "byte 7"),
    "large file": (b" " * (MAX_JSON_BYTES + 1), str(MAX_JSON_BYTES)),
}


def assert_refused(read: Callable[[Path], Any], path: Path, word: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and word in message, message
    assert "\n" not in message and len(message) < len(str(path)) + 300
    assert time.process_time() - start < 5


@pytest.mark.parametrize("case", YAML)
def test_hostile_yaml(case: str, tmp_path: Path) -> None:
    content, word = YAML[case]
    file = tmp_path / "mine.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    assert_refused(read_yaml, file, word)


@pytest.mark.parametrize("case", JSON)
def test_hostile_json(case: str, tmp_path: Path) -> None:
    content, word = JSON[case]
    file = tmp_path / "mine.json"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    assert_refused(read_json, file, word)


@pytest.mark.parametrize("read", [read_yaml, read_json])
def test_only_regular_files(read: Callable[[Path], Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        assert_refused(read, path, "regular")
    assert_refused(read, tmp_path / "none", "No such file")
    assert_refused(read, tmp_path / ("x" * 300), "too long")


def test_a_path_with_nul_is_shown_escaped(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        read_yaml(tmp_path / "a\0\x1b.yaml")
    assert r"a\x00\x1b.yaml" in str(caught.value) and "null byte" in str(caught.value)


def test_plain_values(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    content = {"a": [1, -2.5, "text", None, True, 2**64 - 1], "b": {"c": [], "d": {}}}
    file.write_text(json.dumps(content))
    assert read_json(file) == content
    assert read_yaml(file) == content


def test_aliases_and_what_a_merge_brings_may_be_said_again(tmp_path: Path) -> None:
    """Also where what is merged has merged itself."""
    file = tmp_path / "mine.yaml"
    file.write_text("a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b, x: 3}\nd: {<<: [*a, *b], 1: x, '1': y}\n")
    content = read_yaml(file)
    assert (content["b"], content["c"]) == ({"x": 1, "y": 2}, {"x": 3, "y": 2})
    assert content["d"] == {"x": 1, "y": 1, 1: "x", "1": "y"}
