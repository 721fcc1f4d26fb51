"""Peak memory: grows with allocations, stays after they are freed, and is measured per process."""

import subprocess
import sys
from pathlib import Path

import pytest

import dualnet
from dualnet.machine import peak_main_memory

ENVIRONMENT = {"PYTHONPATH": str(Path(dualnet.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
MIB = 2**20


def test_a_peak_stays() -> None:
    """In a process of its own: to pass the peak of these tests would take as much memory again."""
    code = """
import numpy as np
from dualnet.machine import peak_main_memory
before = peak_main_memory()
array = np.ones(before + 64 * 2**20, np.uint8)
peak = peak_main_memory()
del array
print(before, peak, peak_main_memory())
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    before, peak, after = map(int, done.stdout.split())
    assert before + 64 * MIB < peak < 3 * before + 256 * MIB
    assert after > peak - MIB, "the system counts pages in lots"


def test_a_system_that_counts_no_peak_in_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "VmSize:\t 1 kB\nVmRSS:\t 1 kB")
    assert peak_main_memory() > 10 * MIB


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
    child = "from dualnet.machine import peak_main_memory; print(peak_main_memory())"
    done = subprocess.run(
        [sys.executable, "-c", code, child], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert 10 * MIB < int(done.stdout) < 600 * MIB
