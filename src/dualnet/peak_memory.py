"""The most memory that this process has held: on the GPU, or of main memory."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch


def peak_memory(device: torch.device) -> int:
    """Bytes."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else peak_main_memory()


def peak_main_memory() -> int:
    """Linux hands the parent's `ru_maxrss` down to a child, but counts VmHWM anew."""
    status = Path("/proc/self/status")
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines()) if status.exists() else {}
    if "VmHWM" in fields:  # not in every sandbox
        return int(fields["VmHWM"].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
