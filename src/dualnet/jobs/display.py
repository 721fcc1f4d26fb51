"""The progress of rows as the user sees it: a line for each run that ends, and a bar on a terminal."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dualnet.experiments.progress import echo


class RowsDisplay:
    """Prints a line for each run that ends; with `bar`, a bar on a terminal. Silent by default."""

    def __init__(self, console: Console | None = None, bar: bool = True) -> None:
        self.console = console or Console(quiet=True)
        title, off = TextColumn("{task.description}", markup=False), not (bar and self.console.is_terminal)
        columns = (title, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, refresh_per_second=4, disable=off)

    def begin(self, title: str, todo: int, total: int) -> None:
        self.title, self.done, self.total = title, total - todo, total
        self.task = self.bar.add_task(title, total=total, completed=self.done)
        self.bar.start()
        finished = f", {self.done} of them already run" if self.done else ""
        echo(self.console, f"{title}: {total} runs{finished}")

    def run_ended(self, line: str) -> None:
        self.done += 1
        self.bar.advance(self.task)
        echo(self.console, f"{self.title}, {self.done}/{self.total}: {line}")

    def failed_together(self, count: int, reason: str) -> None:
        echo(self.console, f"{self.title}: {count} runs failed side by side, each is tried alone: {reason}")

    def end(self) -> None:
        self.bar.stop()
        self.bar.remove_task(self.task)  # the next stage must not draw it again
