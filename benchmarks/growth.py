"""The time of a step against the number of tasks and memory slots; it should not grow."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import torch

from benchmarks.report import Figure
from benchmarks.sizes import CLASSES_PER_TASK, Sizes, Stepper, spec_of, warm_up
from benchmarks.timing import in_turns, ratio
from dualnet.learners import ER
from dualnet.learners.options import EncoderOptions
from dualnet.memory import MemoryConfig

WIDTH, IMAGE_SIZE = 8, 32  # so small that an effect of the stored data would show
NUM_TASKS = (5, 50, 500)
NUM_SLOTS = (1_000, 100_000)


def growth(device: torch.device, sizes: Sizes) -> list[Figure]:
    tasks = {f"{num:,} tasks": er_with(num, slots_per_class=10, device=device) for num in NUM_TASKS}
    slots = {
        f"{num:,} slots": er_with(NUM_TASKS[0], num // (NUM_TASKS[0] * CLASSES_PER_TASK), device) for num in NUM_SLOTS
    }
    return ratios(tasks, device, sizes) + ratios(slots, device, sizes)


def er_with(num_tasks: int, slots_per_class: int, device: torch.device) -> Stepper:
    config = ER.Config(EncoderOptions(width=WIDTH), memory=MemoryConfig(slots_per_class=slots_per_class))
    return Stepper("er", config, spec_of(num_tasks, IMAGE_SIZE), device)


def ratios(benches: Mapping[str, Stepper], device: torch.device, sizes: Sizes) -> list[Figure]:
    """The time of each step divided by that of the first."""
    times = in_turns({name: bench.step for name, bench in benches.items()}, device, 3 * sizes.repeats, warm_up(device))
    first, *others = benches
    base = f"{1e3 * median(times[first]):.3g} ms with {first} stored; ER, width {WIDTH}, {IMAGE_SIZE} px"
    return [Figure(f"step with {name} by {first}", ratio(times, name, first), "x", base) for name in others]
