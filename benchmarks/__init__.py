"""Benchmarks of speed and memory on this machine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch

from benchmarks import images, processes, steps
from benchmarks.report import Figure, Report, environment
from benchmarks.sizes import Sizes, choose_sizes
from dualnet.machine import choose_device

SECTIONS: dict[str, Callable[[torch.device, Sizes], list[Figure]]] = {
    "steps": steps.steps,
    "augmentation": images.augmentation,
    "cache": images.cache,
    "evaluation": steps.evaluation,
    "memory": processes.memory,
    "import": processes.import_time,
}

Progress = Callable[[str], None]  # called with the name of each section when it starts


def bench(
    device: Literal["auto", "cpu", "cuda"] = "auto",
    only: Sequence[str] = (),
    small: bool | None = None,
    num_images: int | None = None,
    repeats: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure some sections, by default all. `small` sizes are the default without a GPU."""
    for name in only:
        if name not in SECTIONS:
            raise ValueError(f"only: {name!r} is not a section; choose from {', '.join(SECTIONS)}")
    chosen = choose_device(device)
    sizes = choose_sizes(chosen.type == "cpu" if small is None else small, num_images, repeats)
    report = Report(environment(chosen, sizes), figures=[], failed=[])
    for name in [name for name in SECTIONS if name in only or not only]:
        if progress is not None:
            progress(name)
        measure(name, chosen, sizes, report)
    return report


def measure(name: str, device: torch.device, sizes: Sizes, report: Report) -> None:
    """Add the figures of a section, or the reason if it fails, so that the other sections can continue."""
    try:
        figures = SECTIONS[name](device, sizes)
    except RuntimeError as error:  # such as too little memory on the device
        report.failed.append(name)
        figures = [Figure("failed", None, "", " ".join(str(error).split())[:300])]
    report.figures.extend(replace(figure, section=name) for figure in figures)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # so that sections do not affect each other


__all__ = ["SECTIONS", "Figure", "Report", "bench"]
