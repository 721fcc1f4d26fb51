"""How a time is taken: after a warm-up, with the device's work finished, in turns with what it is compared to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

PATIENCE = 15.0  # seconds after which no further round begins, but for the fewest that make a median
FEWEST_ROUNDS = 3

Times = dict[str, list[float]]  # seconds of every round, by variant


def in_turns(
    variants: Mapping[str, Callable[[], Any]], device: torch.device, repeats: int, warm_up: int = 2, calls: int = 1
) -> Times:
    """Seconds per call of each variant, once per round. All take their turn in a round, so that drift meets all alike.

    `calls` in a row are timed together where one is too short for the clock.
    """
    for call in variants.values():
        for _ in range(warm_up):
            call()
    times: Times = {name: [] for name in variants}
    start = time.perf_counter()
    for number in range(repeats):
        for name, call in variants.items():
            times[name].append(seconds(call, device, calls))
        if number + 1 >= FEWEST_ROUNDS and time.perf_counter() - start > PATIENCE:
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
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ratio(times: Times, of: str, to: str) -> float:
    """The median over the rounds of one variant's time by another's.

    >>> ratio({"long": [4.0, 80.0, 6.0], "short": [2.0, 40.0, 2.0]}, "long", "short")
    2.0
    """
    return median(a / b for a, b in zip(times[of], times[to], strict=True))
