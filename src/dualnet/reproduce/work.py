"""Runs what is missing of some rows, each in a process of its own: a row that fails or dies leaves the others alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal

from dualnet.data import Benchmark, BenchmarkConfig
from dualnet.runs.experiment import Experiment, check_absent
from dualnet.runs.run_folder import RunFolder
from dualnet.runs.stop import Stop, StopAsked

from .table import Row

Device = Literal["cpu", "cuda"]

# On the CPU forked from a server that has imported torch once, so that a start is quick. A process for CUDA is begun
# anew: a fork of one that has looked at the device cannot use it. Each has a peak of memory of its own.
PROCESSES = {"cpu": multiprocessing.get_context("forkserver"), "cuda": multiprocessing.get_context("spawn")}
# The first optimizer of a process imports the second, which takes 2 s. Nothing of ours: a server may not have the path.
IMPORTED_ONCE = ["torch", "torch._dynamo"]
LONGEST = 500  # characters that a process says at its end: they must fit into a pipe that is read when it has ended


Benchmarks = list[tuple[BenchmarkConfig, Benchmark | None]]


@dataclass(frozen=True, slots=True)
class Unit:
    """What one process does."""

    row: Row
    experiment: Experiment
    folders: dict[int, Path]  # by seed


@dataclass(frozen=True, slots=True)
class Child:
    unit: Unit
    process: Any
    words: connection.Connection  # what it says at its end: nothing, or what went wrong


def run_rows(
    rows: Sequence[Row], seeds: Sequence[int] | None, out: Path, device: Device, jobs: int, overrides: Mapping[str, Any]
) -> dict[str, str]:
    """Run the seeds that have no result yet, `jobs` at a time. Returns what went wrong, by name of the row.

    Raises ValueError if the options of one are not sound or if none can run, and StopAsked once all has come to a stop.
    """
    check_absent(
        overrides,
        seed="a table runs every row with its seeds; give --seeds",
        name="the rows of a table have names of their own; give --out for another folder",
    )
    wanted = [(row, row.experiment(overrides), row_seeds) for row, row_seeds in homes(rows, seeds).values()]
    units: list[list[Unit]] = []
    failed: dict[str, str] = {}
    made: Benchmarks = []
    for row, experiment, row_seeds in wanted:
        try:
            group = units_of(row, experiment, row_seeds, out, jobs > 1 and device == "cpu")
            check_images(row, experiment, row_seeds, out, made)
            units.append(group)
        except ValueError as error:
            failed[row.name] = str(error)
    if failed and not units:
        name, reason = next(iter(failed.items()))
        raise ValueError(f"{name}: {reason}")
    return {**failed, **Crew([unit for group in units for unit in group], device, jobs).run()}


def homes(rows: Sequence[Row], seeds: Sequence[int] | None) -> dict[str, tuple[Row, list[int]]]:
    """By the row whose runs they are, a row and the seeds: two rows may share their runs, and want more or fewer."""
    found: dict[str, tuple[Row, list[int]]] = {}
    for row in rows:
        first, before = found.get(row.home, (row, []))
        more = [seed for seed in seeds or range(row.num_seeds) if seed not in before]
        found[row.home] = first, before + more
    return found


def check_images(row: Row, experiment: Experiment, seeds: Sequence[int], out: Path, made: Benchmarks) -> None:
    """Raises ValueError if images are needed and not there, or not those of the seeds that were begun."""
    folders = [RunFolder(run_folder(out, row, seed)) for seed in seeds]
    if all(folder.finished and not folder.lies_elsewhere(experiment) for folder in folders):
        return
    benchmark = benchmark_for(experiment.benchmark, made)
    for folder in folders:
        if benchmark is not None and folder.experiment_file.exists():
            folder.check_same_stream(experiment, benchmark)


def benchmark_for(config: BenchmarkConfig, made: Benchmarks) -> Benchmark | None:
    """Made once; the images are decoded here for all processes. Raises ValueError if its files are not there.

    None where something else is wrong, which is not told here: the processes of its rows meet it again and show it,
    each with its traceback, while the other rows go on.
    """
    for known, benchmark in made:
        if known == config:
            return benchmark
    try:
        made.append((config, config.make()))
    except ValueError:
        raise
    except Exception:  # a bug of a benchmark, or of a disk
        made.append((config, None))
    return made[-1][1]


def units_of(row: Row, experiment: Experiment, seeds: Sequence[int], out: Path, apart: bool) -> list[Unit]:
    """The seeds of a row that are not finished: all of them in one process, or each in its own."""
    missing: dict[int, Path] = {}
    for seed in seeds:
        folder = RunFolder(run_folder(out, row, seed))
        folder.check_same(experiment.with_seed(seed))
        if not folder.finished:
            missing[seed] = folder.path
    groups = [{seed: folder} for seed, folder in missing.items()] if apart else [missing]
    return [Unit(row, experiment, group) for group in groups if group]


def run_folder(out: Path, row: Row, seed: int) -> Path:
    return out / row.home / f"seed-{seed}"


class Crew:
    """Processes at work, a few at a time."""

    def __init__(self, units: Sequence[Unit], device: Device, jobs: int) -> None:
        self.waiting, self.device, self.jobs = deque(units), device, jobs
        self.children: list[Child] = []
        self.failed: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        told = False
        with Stop() as stop:
            while self.children or (self.waiting and not stop.asked):
                while self.waiting and len(self.children) < self.jobs and not stop.asked:
                    self.children.append(self.start(self.waiting.popleft()))
                connection.wait([child.process.sentinel for child in self.children], timeout=0.2)
                self.children = [child for child in self.children if not self.has_ended(child)]
                if stop.asked and not told:
                    told = True
                    for child in self.children:
                        child.process.terminate()  # it finishes its step and saves
            if stop.asked:
                raise StopAsked("stopped; the same command goes on from there")
        return self.failed

    def start(self, unit: Unit) -> Child:
        processes = PROCESSES[self.device]
        processes.set_forkserver_preload(IMPORTED_ONCE)
        ours, theirs = processes.Pipe(duplex=False)
        process = processes.Process(target=work, args=(unit, self.device, self.jobs, theirs))
        process.start()
        theirs.close()
        return Child(unit, process, ours)

    def has_ended(self, child: Child) -> bool:
        if child.process.is_alive():
            return False
        child.process.join()
        try:
            words = child.words.recv()
        except EOFError:
            code = child.process.exitcode
            how = f"signal {-code}" if code < 0 else f"code {code}"
            words = f"its process ended with {how}; is there enough memory?"
        if words:
            self.failed[child.unit.row.name] = words
        child.words.close()
        return True


def work(unit: Unit, device: Device, jobs: int, words: connection.Connection) -> None:
    """In a process of its own: run the unit and say what went wrong, if anything did."""
    os.setpgid(0, 0)  # Ctrl-C is for the parent, which passes it on once: a second signal would end this at once
    Stop.passed_on = True
    warnings.filterwarnings("ignore", message=".*: left out; images of a class")  # the parent has said so
    threading.Thread(target=stop_with_parent, daemon=True).start()
    words.send(run_unit(unit, device, jobs))


def stop_with_parent() -> None:
    """A parent that was killed leaves no run behind: it saves itself, and the same command goes on from there."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def run_unit(unit: Unit, device: Device, jobs: int) -> str:
    import torch
    from rich.console import Console

    from dualnet import engine
    from dualnet.runs import progress, runner
    from dualnet.runs.run import NotFiniteError

    if jobs > 1:
        torch.set_num_threads(1)
    console = Console(stderr=True)
    display = progress.Lines(console) if jobs > 1 else progress.display_for(console, progress.Live, progress.Lines)
    try:
        runner.run(unit.experiment, unit.folders, engine.choose_device(device), display)
    except StopAsked:
        return "its process was told to stop"  # if it was the parent that asked, it does not read this
    except (ValueError, NotFiniteError, OSError) as error:
        return one_line(str(error))
    except Exception as error:  # a bug, or a device without memory left: shown in full, and the other rows go on
        traceback.print_exc()
        return one_line(f"{type(error).__name__}: {error}")
    return ""


def one_line(text: str) -> str:
    return " ".join(text.split())[:LONGEST]
