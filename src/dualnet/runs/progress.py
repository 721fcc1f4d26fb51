"""What a person sees of a run: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

LINE_EVERY = 20.0  # seconds between plain lines

Shown = TypeVar("Shown")


class Display(Protocol):
    """What the runner tells while it works."""

    def begin(self, name: str, num_steps: int, done: int) -> None: ...
    def step(self, task: int, num_tasks: int, done: int) -> None: ...
    def losses(self, losses: Mapping[str, float]) -> None: ...
    def evaluated(self, task: int, num_tasks: int, accuracy: float) -> None: ...
    def diverged(self, name: str, step: int) -> None: ...
    def end(self) -> None: ...


class Quiet:
    """Shows nothing: for tests and for use from Python."""

    def begin(self, name: str, num_steps: int, done: int) -> None: ...
    def step(self, task: int, num_tasks: int, done: int) -> None: ...
    def losses(self, losses: Mapping[str, float]) -> None: ...
    def evaluated(self, task: int, num_tasks: int, accuracy: float) -> None: ...
    def diverged(self, name: str, step: int) -> None: ...
    def end(self) -> None: ...


class Live:
    """A bar with task, step, rate, losses and the time left."""

    def __init__(self, console: Console) -> None:
        # Only the bar and the losses give way where the terminal is narrow.
        losses = Column(ratio=2, no_wrap=True, overflow="ellipsis")
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[losses]}", style="dim", table_column=losses),
        )
        self.bar = Progress(*columns, console=console, expand=True, refresh_per_second=4)
        self.console = console

    def begin(self, name: str, num_steps: int, done: int) -> None:
        self.name, self.start, self.done = name, time.monotonic(), done
        self.row = self.bar.add_task(name, total=num_steps, completed=done, rate="", losses="")
        self.bar.start()

    def step(self, task: int, num_tasks: int, done: int) -> None:
        rate = (done - self.done) / max(time.monotonic() - self.start, 1e-6)
        description = f"{self.name} · task {task + 1}/{num_tasks}"
        self.bar.update(self.row, completed=done, description=description, rate=f"{rate:.1f} steps/s")

    def losses(self, losses: Mapping[str, float]) -> None:
        self.bar.update(self.row, losses=loss_text(losses))

    def evaluated(self, task: int, num_tasks: int, accuracy: float) -> None:
        self.console.print(Text(evaluation_text(self.name, task, num_tasks, accuracy)))

    def diverged(self, name: str, step: int) -> None:
        self.console.print(Text(divergence_text(name, step)))

    def end(self) -> None:
        self.bar.stop()
        self.bar.remove_task(self.row)  # it stays on the screen; the next seed must not draw it again


class Lines:
    """A line per evaluation, and one now and then in between."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.text = ""

    def begin(self, name: str, num_steps: int, done: int) -> None:
        self.name, self.num_steps, self.done = name, num_steps, done
        self.start = self.last = time.monotonic()
        say(self.console, f"{name}: {num_steps} steps" + (f", goes on from step {done}" if done else ""))

    def step(self, task: int, num_tasks: int, done: int) -> None:
        now = time.monotonic()
        if now - self.last < LINE_EVERY:
            return
        self.last = now
        rate = (done - self.done) / (now - self.start)
        left = (self.num_steps - done) / max(rate, 1e-6)
        where = f"{self.name}: task {task + 1}/{num_tasks}, step {done}/{self.num_steps}"
        losses = f"  {self.text}" if self.text else ""
        say(self.console, f"{where}, {rate:.1f} steps/s, {left:.0f} s left{losses}")

    def losses(self, losses: Mapping[str, float]) -> None:
        self.text = loss_text(losses)

    def evaluated(self, task: int, num_tasks: int, accuracy: float) -> None:
        say(self.console, evaluation_text(self.name, task, num_tasks, accuracy))

    def diverged(self, name: str, step: int) -> None:
        say(self.console, divergence_text(name, step))

    def end(self) -> None:
        pass


def display_for(console: Console, live: Callable[[Console], Shown], lines: Callable[[Console], Shown]) -> Shown:
    """A live display on a terminal, lines elsewhere: these here, or those of a search."""
    return live(console) if console.is_terminal else lines(console)


def say(console: Console, line: str) -> None:
    """A plain line, of any length."""
    console.print(Text(line), soft_wrap=True)


def loss_text(losses: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3g}" for name, value in losses.items())


def evaluation_text(name: str, task: int, num_tasks: int, accuracy: float) -> str:
    return f"{name}: after task {task + 1}/{num_tasks}, {accuracy:.1f} % on the tasks so far"


def divergence_text(name: str, step: int) -> str:
    return f"{name}: diverged at step {step}"
