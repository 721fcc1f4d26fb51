"""This machine: its cores and its processor, told or not."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

import pytest
import torch

from dualnet.machine import cpu_name, keep_freed_memory, num_cores


def test_the_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 7}, raising=False)
    assert num_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_cores() == 1


def test_a_processor_that_the_system_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "model name\t: Fast 3000\nmodel name\t: Fast 3000\n")
    assert cpu_name() == "Fast 3000"
    monkeypatch.setattr(Path, "read_text", lambda _: "flags : fpu\n")
    assert cpu_name() == platform.machine()

    def refused(_: Path) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refused)
    assert cpu_name() == (platform.processor() or platform.machine())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory in its own way")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    keep_freed_memory()
    torch.ones(2**21)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**21)  # 8 MiB: 2,048 pages
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 10 * 2048, "20 * 2,048 if each were returned"
