"""Pickled dictionaries with arrays of bytes, read without running anything that the file names.

A pickle calls what it names. Here it can name only what an array of bytes is made of, and even for these it gets
substitutes: numpy's own constructors were not written for untrusted files.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

LARGEST = 400_000_000  # bytes of a file; CIFAR-100's training images have 155 MB
LONGEST = 100  # characters of a reason: a file may put anything into it


def read_pickled(path: str, remedy: str) -> dict[str, Any]:
    """The dictionary in a file: keys are text, values are what `pickle` makes without calls, or uint8 arrays."""
    from dualnet.files import read_bytes  # not at the top: it loads PyYAML

    try:
        content = _Reader(io.BytesIO(read_bytes(path, LARGEST)), encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} where a dictionary should be")
        return {as_text(key): value.array if isinstance(value, _Array) else value for key, value in content.items()}
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except Exception as error:  # damaged pickles raise all sorts, from EOFError to OverflowError
        reason = " ".join(str(error).split())[:LONGEST] or type(error).__name__
        raise ValueError(f"{path}: not a batch of images ({reason}); {remedy}") from None


def as_text(value: Any) -> str:
    """Python 2 wrote text as bytes."""
    if not isinstance(value, str | bytes):
        raise ValueError(f"a {type(value).__name__} where text should be")
    return value.decode() if isinstance(value, bytes) else value


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in SUBSTITUTES:
            raise ValueError(f"it wants to call {module}.{name}, which was not done")
        return SUBSTITUTES[module, name]


class _Kind:
    """For numpy.dtype."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        self.code = as_text(code)

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: a byte has none."""


class _Array:
    """For numpy.ndarray: made empty and then given its state, or made whole."""

    array: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, data = state
        if kind.code != "u1":
            raise ValueError(f"an array of {kind.code!r} where bytes, 'u1', should be")
        self.array = np.frombuffer(data, np.uint8).reshape(shape, order="F" if is_fortran else "C")


def _whole(data: bytes, kind: _Kind, shape: tuple[int, ...], order: str) -> _Array:
    made = _Array()
    made.__setstate__((None, shape, kind, order == "F", data))
    return made


SUBSTITUTES: dict[tuple[str, str], type | Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),  # how Python 3 writes bytes for Python 2
    **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda *_: _Array() for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _whole for core in ("core", "_core")},
}
