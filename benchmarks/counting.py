"""Counts the operations of one step, and measures the peak rate of the device."""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.report import Figure
from benchmarks.sizes import Sizes
from benchmarks.timing import finish, in_turns

COPIES = ("Memcpy", "Memset")


def peak_rate(device: torch.device, sizes: Sizes) -> tuple[float, str]:
    """Operations per second of a large matrix product in the precision of the networks, with a description."""
    size = sizes.matmul_size
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    taken = in_turns({"product": lambda: a @ b}, device, sizes.repeats, warm_up=3, calls=3)["product"]
    return 2 * size**3 / median(taken), f"measured: {dtype} product of two {size} x {size} matrices".replace(
        "torch.", ""
    )


def arithmetic(step: Callable[[], None]) -> int:
    """Floating-point operations of one eager step, counted by PyTorch."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def operations(title: str, step: Callable[[], None], device: torch.device) -> Figure:
    """The number of operations of one eager step: kernels on a GPU, PyTorch operators on a CPU."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler writes two lines to stderr
    on_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU] + on_cuda * [ProfilerActivity.CUDA]) as recorded:
        step()
        finish(device)
    events = recorded.events() or []
    if not on_cuda:
        leaves = [event for event in events if event.name.startswith("aten::") and not event.cpu_children]
        return Figure(f"{title} aten ops", len(leaves), "per step", "one seed; operators that call no other operator")
    # The events of the device include the optimizers' named regions, which are not kernels.
    names = [event.name for event in events if event.device_type == DeviceType.CUDA]
    kernels = [name for name in names if not name.startswith((*COPIES, "Optimizer."))]
    copies = sum(name.startswith(COPIES) for name in names)
    return Figure(f"{title} kernels", len(kernels), "per step", f"one seed, eager; without {copies} copies and fills")
