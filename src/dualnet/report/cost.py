"""The cost of runs: images through the networks, seconds and memory, as means over seeds and as text."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from dualnet.runs.record import RunRecord

from .rows import DASH


def mean_cost(runs: Sequence[RunRecord]) -> dict[str, float | None]:
    """The cost of one run, mean over the seeds that recorded it; None if no seed did."""
    return {
        "forward": _mean(run.forward_samples for run in runs),  # images passed through a network
        "backward": _mean(run.backward_samples for run in runs),  # images for which a gradient was computed
        "seconds": _mean(run.seconds for run in runs),  # of all seeds that ran together on the device
        "memory": max((run.peak_memory for run in runs if run.peak_memory), default=None),  # bytes
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def cost_texts(cost: Mapping[str, float | None]) -> list[str]:
    samples = [samples_text(cost["forward"]), samples_text(cost["backward"])]
    return [*samples, seconds_text(cost["seconds"]), memory_text(cost["memory"])]


def seconds_text(seconds: float | None) -> str:
    """Seconds, with one decimal below 100.

    >>> seconds_text(9.27), seconds_text(4321.7), seconds_text(None)
    ('9.3', '4,322', '—')
    """
    if seconds is None or not math.isfinite(seconds):
        return DASH
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:,.0f}"


def samples_text(number: float | None) -> str:
    """A number of images with the suffix k, M or G if it is large.

    >>> samples_text(1_248_300), samples_text(31_260), samples_text(950), samples_text(None)
    ('1.25M', '31.3k', '950', '—')
    """
    if not number:
        return DASH
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * unit:
            return f"{number / unit:#.3g}".rstrip(".") + letter
    return f"{number:.0f}"


def memory_text(num_bytes: float | None) -> str:
    """Bytes in MiB or GiB.

    >>> memory_text(3 * 2**30), memory_text(200 * 2**20), memory_text(None)
    ('3.0 GiB', '200 MiB', '—')
    """
    if not num_bytes:
        return DASH
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
