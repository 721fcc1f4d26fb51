"""This machine: its cores, its processor, and the most memory that this process has held."""

import ctypes
import os
import platform
import resource
import sys
from contextlib import suppress
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def num_cores() -> int:
    """Those that this process may use, where the system tells."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's model where the system tells it, else its kind."""
    return told("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def lacks_bf16() -> bool:
    """Whether the processor is an x86 one without instructions for bfloat16, as far as the system tells."""
    flags = set(told("/proc/cpuinfo", "flags").split())
    return platform.machine() in ("x86_64", "AMD64") and bool(flags) and not flags & {"avx512_bf16", "amx_bf16"}


def told(file: str, key: str) -> str:
    """The first value of a key in a file of Linux; empty on other systems, and where it is not there."""
    with suppress(OSError):
        for line in Path(file).read_text().splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return ""


def keep_freed_memory() -> None:
    """Makes the C library reuse freed memory instead of returning it to the system, where it is glibc.

    Every step allocates and frees feature maps of the same sizes: a page that was returned costs a page fault again.
    """
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_TRIM_THRESHOLD, 2**28)
        mallopt(M_MMAP_THRESHOLD, 2**25)


def peak_main_memory() -> int:
    """Bytes. Linux hands the parent's `ru_maxrss` down to a child, but counts VmHWM anew."""
    if peak := told("/proc/self/status", "VmHWM"):  # not in every sandbox
        return int(peak.split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
