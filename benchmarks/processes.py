"""Measurements that need a new process: peak memory, and the time of an import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from statistics import median

import torch

from benchmarks.report import Figure
from benchmarks.sizes import Sizes, Stepper, config_of, spec_of, warm_up
from dualnet.machine import peak_memory

NUM_SEEDS = 5
PEAK = "import sys; from benchmarks import processes; print(processes.peak_of_steps(*sys.argv[1:]))"
IMPORTS = """
from time import perf_counter
times = [perf_counter()]
import torch
times.append(perf_counter())
import dualnet
times.append(perf_counter())
print(times[1] - times[0], times[2] - times[1])
"""


def memory(device: torch.device, sizes: Sizes) -> list[Figure]:
    peak = int(in_fresh_process(PEAK, device.type, json.dumps(asdict(sizes))))
    kind = "GPU memory reserved" if device.type == "cuda" else "main memory, PyTorch itself included"
    note = f"peak of {kind}; width {sizes.dualnet_width}, {sizes.image_size} px"
    return [Figure(f"DualNet, {NUM_SEEDS} seeds together", peak, "bytes", note)]


def import_time(device: torch.device, sizes: Sizes) -> list[Figure]:
    del device  # an import runs on the host
    runs = [in_fresh_process(IMPORTS).split() for _ in range(sizes.processes)]
    of_torch, of_dualnet = (median(float(run[index]) for run in runs) for index in (0, 1))
    return [
        Figure("import dualnet, after torch", of_dualnet, "s", f"median of {sizes.processes} fresh processes"),
        Figure("import torch", of_torch, "s", "in the same processes"),
    ]


def peak_of_steps(device: str, sizes: str) -> int:
    """Peak memory in bytes of some steps of DualNet, for a process that does nothing else."""
    read = Sizes(**json.loads(sizes))
    spec = spec_of(read.num_tasks, read.image_size)
    bench = Stepper("dualnet", config_of("dualnet", read), spec, torch.device(device), NUM_SEEDS)
    for _ in range(warm_up(bench.engine.device)):
        bench.step()
    return peak_memory(bench.engine.device)


def in_fresh_process(code: str, *arguments: str) -> str:
    """The output of a new Python process with the same import path as this one."""
    path = os.pathsep.join(folder for folder in sys.path if folder)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"a fresh process failed: {done.stderr.strip()[-300:]}")
    return done.stdout
