"""Untrusted pickles: arrays of bytes are read unchanged, and everything else is refused."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualnet.data.pickled import read_pickled


def reading(folder: Path, data: bytes) -> dict:
    (folder / "file").write_bytes(data)
    return read_pickled(str(folder / "file"), "unpack it again")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_and_plain_values_come_back(tmp_path: Path, protocol: int, order) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4).copy(order=order)
    content = {"array": array, "list": [1, 2], "text": "é", "bytes": b"\x00\xff", "nested": {"a": (1, None)}}
    read = reading(tmp_path, pickle.dumps(content, protocol))
    assert np.array_equal(read.pop("array"), array)
    content.pop("array")
    assert read == content


def test_what_python_2_wrote(tmp_path: Path) -> None:
    """Written out by hand: text as bytes, an array made empty and then given its state, as in the data set's files."""
    dtype = b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    state = b"(I1\n(I2\nI2\nt" + dtype + b"I00\nS'\\x00\\x01\\xfe\\xff'\ntb"
    read = reading(tmp_path, b"(dS'data'\n" + array + state + b"sS'names'\n(lS'apple'\nas.")
    assert read["data"].tolist() == [[0, 1], [254, 255]] and read["data"].dtype == np.uint8
    assert read["names"] == [b"apple"]


REFUSED = {
    "a-call": (b"cos\nsystem\n(S'touch x'\ntR.", "os.system"),
    "eval": (b"cbuiltins\neval\n(S'1'\ntR.", "builtins.eval"),
    "lines": (b"\x80\x04\x8c\x04o\ns\n\x8c\x07sys\ntem\x93.", r"o s \.sys tem"),
    "a-long-name": (b"c" + b"x" * 5000 + b"\ny\n.", "x{80}"),
    "numpys-own": (b"cnumpy\nload\n(S'x'\ntR.", "numpy.load"),
    "a-dtype-alone": (pickle.dumps({"a": np.dtype("f8"), "b": np.float64(1)}), "numpy"),
    "too-little-data": (
        pickle.dumps({"a": np.zeros(3, np.uint8)}, 2).replace(b"K\x03\x85", b"K\x04\x85"),
        "cannot reshape",
    ),
    "no-state": (b"(dS'a'\ncnumpy\nndarray\n(tRs.", "no attribute 'array'"),
    "persistent": (b"Px\n.", "persistent"),
    "registered": (b"\x82\x01.", "unregistered extension code 1"),
    "unfinished": (b"(dS'a'\n", "Ran out of input|truncated"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_all_else_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, reason = REFUSED[kind]
    with pytest.raises(ValueError, match=reason) as caught:
        reading(tmp_path, data)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/file: not a batch of images (")
    assert "\n" not in message and len(message) < len(str(tmp_path)) + 170
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@given(st.binary(max_size=60))
def test_noise_is_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    try:
        read = reading(tmp_path_factory.getbasetemp(), data)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(read, dict)
