"""This machine, as far as speed depends on it: its cores and its processor."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def num_cores() -> int:
    """Those that this process may use, where the system tells."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's model where the system tells it, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
