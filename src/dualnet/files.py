"""Reading of YAML and JSON files. A damaged or malicious file is refused with one line that names its path."""

import json
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualnet.text import escape, join_lines

MEGABYTE = 1 << 20
MAX_YAML_BYTES, MAX_JSON_BYTES = MEGABYTE, 64 * MEGABYTE
MAX_DEPTH = 50  # levels of nesting
# What reading a damaged file, or using its content, can raise.
READ_ERRORS = (
    OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError
)  # fmt: skip


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a file holds."""
    return mapping_in_file(path, "YAML", MAX_YAML_BYTES, parsed_yaml)


def read_json(path: Path) -> dict[str, Any]:
    """The mapping that a file holds."""
    return mapping_in_file(path, "JSON", MAX_JSON_BYTES, parsed_json)


def mapping_in_file(path: Path, kind: str, limit: int, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        content = parse(read_text(path, limit))
    except READ_ERRORS as error:
        raise ValueError(f"{escape(path)}: cannot be read as {kind} ({describe_error(error)})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{escape(path)}: is not a {kind} mapping")
    return content


def read_text(path: Path, limit: int) -> str:
    return read_bytes(path, limit).decode("utf-8")


def read_bytes(path: str | Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises ValueError for others, OSError if missing."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO without a writer would block
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_size > limit:
            raise ValueError(f"{status.st_size} bytes, more than the limit of {limit}")
        return file.read(status.st_size)


def parsed_yaml(text: str) -> Any:
    from dualnet.safe_yaml import parse_yaml  # not at the top: images and JSON need no PyYAML

    value = parse_yaml(text, MAX_DEPTH)
    check_values(value)
    return value


def parsed_json(text: str) -> Any:
    value = json.loads(text)
    check_values(value)
    return value


def check_values(value: Any, depth: int = 0) -> None:
    """Allow mappings, lists, strings, finite numbers that fit 64 bits, booleans and null; nothing else."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        for key, item in value.items():
            check_values(key)
            check_values(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            check_values(item, depth + 1)
    elif isinstance(value, int):
        if abs(value) >= 2**64:
            raise ValueError(f"a whole number of {len(str(abs(value)))} digits does not fit 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
    elif value is not None and not isinstance(value, str):
        raise ValueError(f"{value} is read as a {type(value).__name__}; quote it if it is text")


def describe_error(error: Exception) -> str:
    """What is wrong with a file, and where, in one line."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: byte {error.start}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, MemoryError):
        return "too large for the memory"
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, (AttributeError, TypeError, ArithmeticError, IndexError)):
        return "a value has the wrong type"
    return join_lines(error)


def describe_file_error(file: Path, error: Exception) -> str:
    """What is wrong with a file, with its path, which the message of the error may already begin with."""
    message = describe_error(error)
    return message if message.startswith(escape(file)) else f"{escape(file)}: cannot be used ({message})"
