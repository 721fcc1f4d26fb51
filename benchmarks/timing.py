"""Timing: after a warm-up, with the device synchronised, alternating between the variants that are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

MAX_SECONDS = 15.0  # no further round starts after this time, but there are always MIN_ROUNDS
MIN_ROUNDS = 3

Times = dict[str, list[float]]  # seconds of every round, by variant


def in_turns(
    variants: Mapping[str, Callable[[], Any]], device: torch.device, repeats: int, warm_up: int = 2, calls: int = 1
) -> Times:
    """Seconds per call of each variant, once per round; alternating, so that drift affects all variants equally.

    `calls` consecutive calls are timed together, for calls that are too short to measure.
    """
    for call in variants.values():
        for _ in range(warm_up):
            call()
    times: Times = {name: [] for name in variants}
    start = time.perf_counter()
    for number in range(repeats):
        for name, call in variants.items():
            times[name].append(seconds(call, device, calls))
        if number + 1 >= MIN_ROUNDS and time.perf_counter() - start > MAX_SECONDS:
            break
    return times


def seconds(call: Callable[[], Any], device: torch.device, calls: int = 1) -> float:
    finish(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    finish(device)
    return (time.perf_counter() - start) / calls


def finish(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ratio(times: Times, of: str, to: str) -> float:
    """The median over rounds of the ratio of two variants' times.

    >>> ratio({"long": [4.0, 80.0, 6.0], "short": [2.0, 40.0, 2.0]}, "long", "short")
    2.0
    """
    return median(a / b for a, b in zip(times[of], times[to], strict=True))
