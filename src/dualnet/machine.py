"""This machine: its cores, its processor, and the most memory that this process has held."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def num_cores() -> int:
    """Those that this process may use, where the system tells."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's model where the system tells it, else its kind."""
    try:
        return cpu_info("model name") or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def lacks_bf16() -> bool:
    """Whether the processor is an x86 one without instructions for bfloat16, as far as the system tells."""
    flags = set[str]()
    with suppress(OSError):
        flags = set(cpu_info("flags").split())
    return platform.machine() in ("x86_64", "AMD64") and bool(flags) and not flags & {"avx512_bf16", "amx_bf16"}


def cpu_info(key: str) -> str:
    """What Linux tells of the first core; empty if it does not. Raises OSError on other systems."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def keep_freed_memory() -> None:
    """Makes the C library reuse freed memory instead of returning it to the system, where it is glibc.

    Every step allocates and frees feature maps of the same sizes: a page that was returned costs a page fault again.
    """
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_TRIM_THRESHOLD, 2**28)
        mallopt(M_MMAP_THRESHOLD, 2**25)


def peak_memory(device: torch.device) -> int:
    """Bytes, on the GPU or of main memory."""
    import torch

    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else peak_main_memory()


def peak_main_memory() -> int:
    """Linux hands the parent's `ru_maxrss` down to a child, but counts VmHWM anew."""
    status = Path("/proc/self/status")
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines()) if status.exists() else {}
    if "VmHWM" in fields:  # not in every sandbox
        return int(fields["VmHWM"].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
