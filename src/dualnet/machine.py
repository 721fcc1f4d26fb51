"""This machine: its cores and processor, its devices, and the memory of this process."""

import ctypes
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def num_cores() -> int:
    """Number of cores that this process may use, or of all cores if the system does not say."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def cpu_name() -> str:
    """The model of the processor, or its architecture if the system does not say."""
    return proc_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def lacks_bf16() -> bool:
    """Whether the processor is known to be an x86 processor without bfloat16 instructions."""
    flags = set(proc_value("/proc/cpuinfo", "flags").split())
    return platform.machine() in ("x86_64", "AMD64") and bool(flags) and not flags & {"avx512_bf16", "amx_bf16"}


def proc_value(file: str, key: str) -> str:
    """The first value of a key in a file below /proc; empty if it is missing, as on other systems than Linux."""
    with suppress(OSError):
        for line in Path(file).read_text().splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return ""


def choose_device(requested: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device; auto is CUDA if it is available. Raises ValueError if CUDA is requested and not available."""
    if requested == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no CUDA device; use --device cpu")
    return torch.device("cuda" if requested != "cpu" and torch.cuda.is_available() else "cpu")


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for reuse instead of returning it to the system.

    Every step allocates and frees feature maps of the same sizes: returned memory would cost page faults again.
    """
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_TRIM_THRESHOLD, 2**28)
        mallopt(M_MMAP_THRESHOLD, 2**25)


def peak_main_memory() -> int:
    """Peak memory in bytes. On Linux from VmHWM, since a child inherits the parent's `ru_maxrss`."""
    if peak := proc_value("/proc/self/status", "VmHWM"):  # missing in some sandboxes
        return int(peak.split()[0]) * 1024
    import resource  # not at the top: Windows has none

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_memory(device: torch.device) -> int:
    """Peak memory of this process in bytes: of the GPU, or main memory."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else peak_main_memory()
