"""Peak memory: it grows with what is held, stays when that is let go, and is a process's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import dualnet
from dualnet.peak_memory import peak_memory

CPU = torch.device("cpu")
MIB = 2**20


def test_a_peak_stays() -> None:
    before = peak_memory(CPU)
    array = np.ones(before + 64 * MIB, np.uint8)
    peak = peak_memory(CPU)
    assert before + 64 * MIB < peak < 3 * before + 256 * MIB
    del array
    assert peak_memory(CPU) > peak - MIB, "the system counts pages in lots"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count a child anew by themselves")
def test_a_process_does_not_inherit_its_parent_s_peak() -> None:
    """Else every row of a table would have held what the largest one did."""
    code = """
import subprocess, sys
held = bytearray(600 * 2**20)
for start in range(0, len(held), 4096):
    held[start] = 1
print(subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True, check=True).stdout)
"""
    child = "import torch; from dualnet.peak_memory import peak_memory; print(peak_memory(torch.device('cpu')))"
    environment = {"PYTHONPATH": str(Path(dualnet.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, child], env=environment, capture_output=True, text=True, check=True
    )
    assert 10 * MIB < int(done.stdout) < 600 * MIB
