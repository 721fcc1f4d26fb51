"""Number of cores and name of the processor, also if the system does not report them."""

import os
import platform
import resource
import warnings
from pathlib import Path

import pytest
import torch

from dualnet.engine import precision_on
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
    assert cpu_name() == (platform.processor() or platform.machine())

    def refused(_: Path) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refused)
    assert cpu_name() == (platform.processor() or platform.machine())


@pytest.mark.parametrize(
    ("kind", "flags", "lacking"),
    [
        ("x86_64", "fpu avx512f avx2", True),
        ("x86_64", "fpu avx512f avx512_bf16", False),
        ("x86_64", "fpu amx_tile amx_bf16", False),
        ("x86_64", "", False),  # not told
        ("aarch64", "fp asimd", False),
    ],
)
def test_bf16_without_instructions_for_it_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, kind: str, flags: str, lacking: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: kind)
    monkeypatch.setattr(Path, "read_text", lambda _: f"model name\t: Fast 3000\nflags\t\t: {flags}\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert precision_on(torch.device("cpu"), "bf16") == "bf16"
        precision_on(torch.device("cpu"), "fp32")
        precision_on(torch.device("cuda"), "bf16")
    told = [str(warning.message) for warning in caught]
    assert len(told) == lacking and all("--precision bf16" in line and "--precision fp32" in line for line in told)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory in its own way")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    keep_freed_memory()
    torch.ones(2**21)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**21)  # 8 MiB: 2,048 pages
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 10 * 2048, "20 * 2,048 if each were returned"
