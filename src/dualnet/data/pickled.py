"""Reading of pickled dictionaries with arrays of bytes, without running code that the file names.

A pickle can call any function by name. Here it can only name those that an array of bytes needs, and these are replaced
by substitutes, since NumPy's own were not written for untrusted files.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from dualnet.text import join_lines

MAX_FILE_BYTES = 400_000_000  # CIFAR-100's training images have 155 MB
MAX_REASON = 100  # characters of a reason, which may contain anything from the file


def read_pickled(path: str, remedy: str) -> dict[str, Any]:
    """The dictionary in a file, with string keys, and values that need no calls to unpickle, or uint8 arrays."""
    from dualnet.files import read_bytes  # not at the top: it loads PyYAML

    try:
        content = _Reader(io.BytesIO(read_bytes(path, MAX_FILE_BYTES)), encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} instead of a dictionary")
        return {as_text(key): value.array if isinstance(value, _Array) else value for key, value in content.items()}
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except Exception as error:  # damaged pickles raise anything from EOFError to OverflowError
        reason = join_lines(error, MAX_REASON) or type(error).__name__
        raise ValueError(f"{path}: not a batch of images ({reason}); {remedy}") from None


def as_text(value: Any) -> str:
    """The value as a string: Python 2 pickled strings as bytes."""
    if not isinstance(value, str | bytes):
        raise ValueError(f"a {type(value).__name__} instead of text")
    return value.decode() if isinstance(value, bytes) else value


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in SUBSTITUTES:
            raise ValueError(f"it names {module}.{name}, which is not allowed")
        return SUBSTITUTES[module, name]


class _Kind:
    """Substitute for numpy.dtype."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        self.code = as_text(code)

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment, which bytes do not have."""


class _Array:
    """Substitute for numpy.ndarray: created empty and then given its state, or by `_from_buffer`."""

    array: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, data = state
        if kind.code != "u1":
            raise ValueError(f"an array of {kind.code!r} instead of bytes, 'u1'")
        self.array = np.frombuffer(data, np.uint8).reshape(shape, order="F" if is_fortran else "C")


def _from_buffer(data: bytes, kind: _Kind, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.__setstate__((None, shape, kind, order == "F", data))
    return array


SUBSTITUTES: dict[tuple[str, str], type | Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),  # how Python 3 pickles bytes for Python 2
    **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda *_: _Array() for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}
