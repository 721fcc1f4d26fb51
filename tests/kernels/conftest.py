"""Triton kernels without a GPU: in a process of their own, since Triton is told at its import how to run them."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

# The interpreter computes every sum of integers a second time to check it for overflow, and drops the answer unless
# it debugs: half of its time.
WITHOUT_UNREAD_CHECKS = """
from triton.runtime import interpreter
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
"""


@pytest.fixture(scope="session")
def run_code() -> Callable[..., None]:
    """run_code(code, NAME=value): Python in a process and an environment of its own; it must succeed."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")

    def run(code: str, **environment: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture(scope="session")
def interpret(run_code: Callable[..., None]) -> Callable[[str], None]:
    """interpret(code): with kernels run by Triton's interpreter."""
    return lambda code: run_code(WITHOUT_UNREAD_CHECKS + code, TRITON_INTERPRET="1")
