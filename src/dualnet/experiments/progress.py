"""The progress of a run as the user sees it: lines, and a bar on a terminal."""

import math
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from dualnet.text import escape, pluralise

LINE_EVERY = 20.0  # seconds between lines if there is no bar
WARM_UP, MEASURED = (1, 5), 20  # steps: the estimate is made from those between, or from LINE_EVERY seconds
WIDE = 100  # columns of a terminal on which names and losses have space
SHORT, LONG = 60.0, 600.0  # seconds: no estimate is shown below the first, faster options are named above the second


class RunDisplay:
    """A line for each evaluation; in between a bar on a terminal, or a line every LINE_EVERY seconds.

    For each group of seeds `begin` is called first and `end` last. `faster` names options that make a long run shorter,
    for the line with the estimated time. Without a console nothing is shown.
    """

    def __init__(self, console: Console | None = None, faster: str = "") -> None:
        self.console, self.faster = console or Console(quiet=True), faster
        self.live = console is not None and console.is_terminal
        self.narrow = self.console.width < WIDE
        name = Column(max_width=16 if self.narrow else None, no_wrap=True, overflow="ellipsis")
        losses = Column(ratio=None if self.narrow else 2, no_wrap=True, overflow="ellipsis")
        columns = (
            TextColumn("{task.description}", markup=False, table_column=name),
            TextColumn("{task.fields[task]}"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[losses]}", style="dim", markup=False, table_column=losses),
        )
        self.bar = Progress(*columns, console=self.console, expand=True, refresh_per_second=4, disable=not self.live)

    def begin(self, name: str, num_steps: int, done: int, what: str = "") -> None:
        """`what` is done in these steps, in place of their number; the first step then tells how long it takes."""
        self.what = what
        self.name, self.num_steps, self.first_step, self.loss_text = name, num_steps, done, ""
        self.anytime_text = ""
        self.start = self.last_line = self.last_step = time.monotonic()
        self.stepping, self.evaluating, self.evaluations = 0.0, 0.0, 0  # seconds, seconds, number
        self.left = math.inf  # seconds, as shown last
        self.warmed_up, self.estimated = (0, self.start), False
        self.row = self.bar.add_task(name, total=num_steps, completed=done, task="", rate="", left="", losses="")
        self.bar.start()
        if not self.live and (done or not what):
            echo(
                self.console,
                f"{name}: {pluralise(num_steps, 'step')}" + (f", continues from step {done}" if done else ""),
            )

    def step(self, task: int, num_tasks: int, done: int) -> None:
        now = time.monotonic()
        self.stepping, self.last_step = self.stepping + now - self.last_step, now
        rate = (done - self.first_step) / max(self.stepping, 1e-6)
        tests = num_tasks - task if self.evaluations else 0
        left = (self.num_steps - done) / max(rate, 1e-6) + tests * self.evaluating / max(self.evaluations, 1)
        self.left = min(self.left, left)  # never goes up
        self.estimate(done - self.first_step, now)
        if self.live:
            of_task = f"task {task + 1}/{num_tasks}" if num_tasks > 1 else ""
            self.bar.update(
                self.row, completed=done, task=of_task, rate=f"{rate:.1f} steps/s", left=f"{duration(self.left)} left"
            )
        elif now - self.last_line >= LINE_EVERY:
            self.last_line = now
            of_task = f"task {task + 1}/{num_tasks}, " if num_tasks > 1 else ""
            where = f"{self.name}: {of_task}step {done}/{self.num_steps}"
            echo(self.console, f"{where}, {rate:.1f} steps/s, {duration(self.left)} left  {self.numbers}".rstrip())

    def estimate(self, steps: int, now: float) -> None:
        """Print the estimated time once, after some steps. The first ones are slower; evaluations are not included."""
        if steps == 1 and self.what and (left := (now - self.start) * (self.num_steps - self.first_step - 1)) >= 1:
            self.estimated = True
            echo(self.console, f"{self.name}: {self.what}, about {duration(left)}")
        if steps in WARM_UP:
            self.warmed_up = steps, now
        if self.estimated or (steps < MEASURED and now - self.warmed_up[1] < LINE_EVERY) or steps <= self.warmed_up[0]:
            return
        self.estimated = True
        left = (now - self.warmed_up[1]) / (steps - self.warmed_up[0]) * (self.num_steps - self.first_step - steps)
        self.left = min(self.left, left)
        if self.left >= SHORT:
            hint = f"; faster, but less accurate, with {self.faster}" if self.faster and self.left >= LONG else ""
            echo(self.console, f"{self.name}: about {duration(self.left)} left{hint}")

    def losses(self, losses: Mapping[str, float]) -> None:
        self.loss_text = "  ".join(f"{escape(name)} {value:.3g}" for name, value in losses.items())
        self.bar.update(self.row, losses=self.numbers)

    def anytime(self, accuracy: float) -> None:
        self.anytime_text = f"{accuracy:.1f} % on the classes so far  "
        self.bar.update(self.row, losses=self.numbers)

    @property
    def numbers(self) -> str:
        """On a narrow terminal the first loss, which is that of the labels."""
        return self.loss_text.partition("  ")[0] if self.live and self.narrow else self.anytime_text + self.loss_text

    def evaluated(self, task: int, num_tasks: int, accuracy: float) -> None:
        now = time.monotonic()
        self.evaluating, self.evaluations = self.evaluating + now - self.last_step, self.evaluations + 1
        self.last_step = now
        echo(self.console, f"{self.name}: after task {task + 1}/{num_tasks}, {accuracy:.1f} % on the tasks so far")

    def diverged(self, name: str, step: int) -> None:
        echo(self.console, f"{name}: diverged at step {step}")

    def end(self) -> None:
        self.bar.stop()
        self.bar.remove_task(self.row)  # it stays on the screen; the next seed must not draw it again


def duration(seconds: float) -> str:
    """
    >>> duration(59.7), duration(1860), duration(20_000)
    ('60 s', '31 min', '5.6 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def echo(console: Console, line: str) -> None:
    """Print a plain line of any length, escaped: it may contain values and errors from files."""
    console.print(Text(escape(line)), soft_wrap=True)
