"""Triton kernels without a GPU: interpreted here, or compiled in a process that is told not to interpret them."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch


def needs_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")


@pytest.fixture(scope="session")
def run_code() -> Callable[..., None]:
    """run_code(code, NAME=value): Python in a process and an environment of its own; it must succeed."""
    needs_triton()

    def run(code: str, **environment: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0", **environment}
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture(scope="session")
def interpreted() -> None:
    """Kernels run by Triton's interpreter, on the CPU: learner_fixtures.py sets this before Triton is imported."""
    needs_triton()
    if torch.cuda.is_available():
        pytest.skip("with a CUDA device the kernels are compiled, and compared on it")
    from triton.runtime import interpreter

    # The interpreter computes every sum of integers a second time to check it for overflow, and drops the answer
    # unless it debugs: half of its time.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
