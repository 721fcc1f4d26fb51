"""Checkpoints: read back bit by bit, or refused if damaged."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualnet.experiments import checkpoint

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def tensor(dtype: torch.dtype, shape: list[int], seed: int, strided: bool) -> torch.Tensor:
    made = torch.randint(0, 200, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.transpose(0, -1) if strided and shape else made


tensors = st.builds(
    tensor, st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=4), st.integers(0, 9), st.booleans()
)
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        tensors | values,
        lambda node: (
            st.lists(node, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), node, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def same(tree: Any, other: Any) -> bool:
    if isinstance(tree, torch.Tensor):
        return tree.dtype == other.dtype and torch.equal(tree, other)
    if isinstance(tree, dict):
        return list(tree) == list(other) and all(same(tree[key], other[key]) for key in tree)
    if isinstance(tree, list):
        return len(tree) == len(other) and all(map(same, tree, other))
    return type(tree) is type(other) and tree == other


@settings(max_examples=30)
@given(trees)
def test_a_tree_comes_back(tmp_path: Path, tree: dict[str, Any]) -> None:
    checkpoint.write(tmp_path, 0, checkpoint.snapshot(tree))
    assert same(tree, checkpoint.load(tmp_path, 0).tree)


def test_odd_values_come_back(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    tree = {
        "names like ours": {"tensor": "0", "dict": [1]},
        "pair": (1, 2),
        "nan": float("nan"),
        "matrix with nan": torch.tensor([math.nan, -0.0, math.inf]),
        "shared": [shared, shared[2:], shared.view(2, 3).t()],
        "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "needs a gradient": torch.nn.Parameter(torch.ones(2)),
    }
    checkpoint.write(tmp_path, 0, checkpoint.snapshot(tree))
    loaded = checkpoint.load(tmp_path, 0).tree
    assert loaded["names like ours"] == tree["names like ours"]
    assert loaded["pair"] == [1, 2]
    assert math.isnan(loaded["nan"])
    assert loaded["matrix with nan"].numpy().tobytes() == tree["matrix with nan"].numpy().tobytes()
    assert same(loaded["shared"], tree["shared"])
    assert torch.equal(loaded["channels last"], tree["channels last"])
    assert not loaded["needs a gradient"].requires_grad


def test_files_do_not_depend_on_the_layout_of_weights(tmp_path: Path) -> None:
    weight = torch.rand(4, 3, 3, 3)
    for name, layout in (("plain", torch.contiguous_format), ("last", torch.channels_last)):
        (tmp_path / name).mkdir()
        checkpoint.write(tmp_path / name, 0, checkpoint.snapshot({"weight": weight.to(memory_format=layout)}))
    plain, last = (sorted((tmp_path / name).iterdir()) for name in ("plain", "last"))
    assert [path.read_bytes() for path in plain] == [path.read_bytes() for path in last]
    conv = torch.nn.Conv2d(3, 4, 3, bias=False).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    conv.load_state_dict(checkpoint.load(tmp_path / "plain", 0).tree)
    assert torch.equal(conv.weight, weight) and conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    """No pickle: other programs can read it, and reading it runs no code."""
    tree = {"weight": torch.ones(2), "other": torch.full((2,), 0.1), "rate": 0.1}
    checkpoint.write(tmp_path, 7, checkpoint.snapshot(tree))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000007.safetensors"]
    with safetensors.safe_open(tmp_path / "step-00000007.safetensors", "pt") as file:
        assert [file.get_tensor(name).dtype for name in "01"] == [torch.float16, torch.float32], "where nothing is lost"
        content = json.loads(file.metadata()["checkpoint"])
    assert content["tree"] == {"dict": [["weight", {"half": "0"}], ["other", {"tensor": "1"}], ["rate", 0.1]]}
    assert content["digest"] == checkpoint.newest_digest(tmp_path)


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 100_000_000, 100_000_001):
        checkpoint.write(tmp_path, step, checkpoint.snapshot({"step": step}))
    assert checkpoint.steps(tmp_path) == [100_000_000, 100_000_001]
    assert len(list(tmp_path.iterdir())) == 2
    assert checkpoint.load(tmp_path, 100_000_001).tree == {"step": 100_000_001}
    checkpoint.write(tmp_path, 100_000_002, checkpoint.snapshot({}), kept=1)
    assert checkpoint.steps(tmp_path) == [100_000_002]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 1, checkpoint.snapshot({"x": torch.zeros(1)}))
    checkpoint.write(tmp_path, 1, checkpoint.snapshot({"x": torch.ones(1)}))
    assert checkpoint.load(tmp_path, 1).tree["x"] == 1


def test_later_steps_make_room(tmp_path: Path) -> None:
    """A run that resumed before damaged checkpoints writes steps earlier than theirs."""
    for step in (8, 9, 2):
        checkpoint.write(tmp_path, step, checkpoint.snapshot({}))
    assert checkpoint.steps(tmp_path) == [2]


@pytest.mark.parametrize(("good", "line"), [(1, "; the previous one is used"), (0, "; there is no previous one")])
def test_one_warning_for_all_that_cannot_be_used(good: int, line: str, tmp_path: Path) -> None:
    for step in (3, 7):  # more than two are never kept
        checkpoint.write(tmp_path, step, checkpoint.snapshot({"x": step}))
    for step in (3, 7)[good:]:
        checkpoint.file_of(tmp_path, step).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="damaged checkpoint .*step-00000007.safetensors: ") as warned:
        newest = checkpoint.newest(tmp_path)
        assert (newest and newest[:2]) == ((3, {"x": 3}) if good else None)
    assert len(warned) == 1 and str(warned[0].message).endswith(line)
    assert ("step-00000003.safetensors: " in str(warned[0].message)) == (not good)


def test_what_is_not_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    assert checkpoint.steps(tmp_path / "missing") == []
    for name in ("step-1.txt", "step-x.safetensors", "notes.json"):
        (tmp_path / name).write_text("mine")
    for step in range(4):
        checkpoint.write(tmp_path, step, checkpoint.snapshot({}))
    assert {"step-1.txt", "step-x.safetensors", "notes.json"} <= {path.name for path in tmp_path.iterdir()}


def test_no_changed_byte_goes_unnoticed(tmp_path: Path) -> None:
    """Every byte, one at a time: a digit of a rate is as bad as a bit of a weight."""
    tree = {"weights": torch.arange(5.0), "rate": 0.125, "names": ["a", "b"], "numbers": {0: 1, 1: 2}}
    checkpoint.write(tmp_path, 0, checkpoint.snapshot(tree))
    file = checkpoint.file_of(tmp_path, 0)
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"damaged checkpoint .*step-00000000.safetensors: "):
            checkpoint.load(tmp_path, 0)
    file.write_bytes(whole)
    assert same(checkpoint.load(tmp_path, 0).tree, tree)
