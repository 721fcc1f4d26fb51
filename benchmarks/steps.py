"""The speed of a learner's steps and predictions, and the operations of a step."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.counting import arithmetic, operations, peak_rate
from benchmarks.report import Figure, milliseconds
from benchmarks.sizes import BATCH_SIZE, Sizes, Stepper, config_of, last_batch, spec_of, warm_up
from benchmarks.timing import in_turns

NAMES = {"dualnet": "DualNet", "er": "ER"}
SEEDS = (1, 5)  # stepped together


def steps(device: torch.device, sizes: Sizes) -> list[Figure]:
    peak, note = peak_rate(device, sizes)
    figures = [Figure("peak of the device", peak / 1e12, "TFLOP/s", note)]
    for name in NAMES:
        figures += steps_of(name, device, sizes, peak)
    return figures


def steps_of(name: str, device: torch.device, sizes: Sizes, peak: float) -> list[Figure]:
    """The times of all execution modes of a learner's step, alternating; then the operations of a step."""
    modes = {"eager": False, "replayed": True} if device.type == "cuda" else {"plain": False}
    spec, config = spec_of(sizes.num_tasks, sizes.image_size), config_of(name, sizes)
    benches = {
        f"{NAMES[name]} step, {num} seed{'s' * (num > 1)}, {mode}": Stepper(name, config, spec, device, num, capture)
        for num in SEEDS
        for mode, capture in modes.items()
    }
    steppers = {what: bench.step for what, bench in benches.items()}
    times = {what: median(taken) for what, taken in in_turns(steppers, device, sizes.repeats, warm_up(device)).items()}
    figures = []
    for what, bench in benches.items():
        figures.append(milliseconds(what, times[what], description(bench, sizes)))
        if bench.num_seeds > 1:
            figures.append(milliseconds(f"{what}, per seed", times[what] / bench.num_seeds))
    best = min(times[what] / bench.num_seeds for what, bench in benches.items())
    return figures + operations_of(name, next(iter(benches.values())), best, peak)


def description(bench: Stepper, sizes: Sizes) -> str:
    if bench.engine.streams and bench.captures and not bench.engine.captured:
        return "could not be captured; measured eagerly"
    config = bench.learner.config
    note = f"width {config.encoder.width}, {sizes.image_size} px, batch {BATCH_SIZE}, {bench.engine.precision}"
    return f"{note}, n={config.slow.rounds}" if hasattr(config, "slow") else note


def operations_of(name: str, eager: Stepper, seconds: float, peak: float) -> list[Figure]:
    """The operations of a step of one seed, and the utilisation of the device at its fastest."""
    samples, flops = samples_per_step(eager.learner.config), arithmetic(eager.step)
    title, fastest = NAMES[name], "per seed, in the fastest mode"
    return [
        Figure(f"{title} images through the networks", samples / seconds, "1/s", f"{samples} per step; {fastest}"),
        operations(title, eager.step, eager.engine.device),
        Figure(f"{title} arithmetic", flops / 1e9, "GFLOP/step", "convolutions and matrix products of one seed"),
        Figure(f"{title} share of the peak", 100 * flops / seconds / peak, "%", fastest),
    ]


def samples_per_step(config: Any) -> int:
    """Images passed forward and backward for one labelled batch and one seed."""
    fast = config.updates * (BATCH_SIZE + config.replay_size)
    if not hasattr(config, "slow"):
        return fast
    return fast + 2 * config.slow.rounds * config.slow.inner_steps * config.slow.batch_size


def evaluation(device: torch.device, sizes: Sizes) -> list[Figure]:
    spec = spec_of(sizes.num_tasks, sizes.image_size)
    benches = {name: Stepper(name, config_of(name, sizes), spec, device) for name in NAMES}
    calls = {name: prediction(bench, sizes.evaluation_size) for name, bench in benches.items()}
    times = in_turns(calls, device, sizes.repeats)
    return [
        Figure(
            f"{NAMES[name]} predictions",
            sizes.evaluation_size / median(times[name]),
            "images/s",
            f"width {bench.learner.config.encoder.width}, {sizes.image_size} px, {sizes.evaluation_size} in one pass",
        )
        for name, bench in benches.items()
    ]


def prediction(bench: Stepper, num_images: int) -> Callable[[], torch.Tensor]:
    batch = last_batch(bench.learner, size=num_images)
    return lambda: bench.engine.logits(bench.learner, batch.images, batch.task_ids)
