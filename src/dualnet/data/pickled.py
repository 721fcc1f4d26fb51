"""Pickled dictionaries with arrays of bytes, read without running anything that the file names.

A pickle calls what it names. Here it can name only what an array of bytes is made of, and even for these it gets
stand-ins: numpy's own constructors were not written for files from strangers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

LONGEST = 100  # characters of a reason: a file may put anything into it


def read_pickled(path: str) -> dict[str, Any]:
    """The dictionary in a file: keys are text, values are what `pickle` makes without calls, or uint8 arrays.

    ValueError says in one line what is wrong, and leaves the remedy to the caller.
    """
    try:
        with open(path, "rb") as file:
            content = _Reader(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} where a dictionary should be")
        return {as_text(key): value.array if isinstance(value, _Array) else value for key, value in content.items()}
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # damaged pickles raise all sorts, from EOFError to OverflowError
        reason = " ".join(str(error).split())[:LONGEST] or type(error).__name__
        raise ValueError(f"{path}: not a batch of images ({reason})") from None


def as_text(value: Any) -> str:
    """Python 2 wrote text as bytes.

    >>> as_text(b"apple"), as_text("apple")
    ('apple', 'apple')
    """
    if not isinstance(value, str | bytes):
        raise ValueError(f"a {type(value).__name__} where text should be")
    return value.decode() if isinstance(value, bytes) else value


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise ValueError(f"it wants to call {module}.{name}, which was not done")
        return STAND_INS[module, name]


class _Array:
    """Stands for a numpy.ndarray, which a pickle first makes empty and then gives its state."""

    array: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, data = state
        self.array = _bytes_of(data, kind).reshape(shape, order="F" if is_fortran else "C")


class _Kind:
    """Stands for a numpy.dtype."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        self.code = as_text(code)

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: a byte has none."""


def _bytes_of(data: bytes, kind: _Kind) -> np.ndarray:
    if kind.code != "u1":
        raise ValueError(f"an array of {kind.code!r} where bytes, 'u1', should be")
    return np.frombuffer(data, np.uint8)


def _empty(*_: Any) -> _Array:
    return _Array()


def _whole(data: bytes, kind: _Kind, shape: tuple[int, ...], order: str) -> _Array:
    made = _Array()
    made.array = _bytes_of(data, kind).reshape(shape, order="F" if order == "F" else "C")
    return made


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    return text.encode("latin1")


STAND_INS: dict[tuple[str, str], type | Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _latin1,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _empty for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _whole for core in ("core", "_core")},
}
