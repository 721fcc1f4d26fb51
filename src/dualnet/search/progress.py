"""What a person sees of a search: a bar on a terminal, plain lines elsewhere, and the table in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dualnet.runs.progress import say
from dualnet.search.plan import METRICS, Options
from dualnet.search.point import Outcome

if TYPE_CHECKING:
    from dualnet.search.search import Search


class Display(Protocol):
    """What a search tells while it works."""

    def begin(self, title: str, todo: int, total: int) -> None: ...
    def settled(self, line: str) -> None: ...
    def end(self) -> None: ...


class Quiet:
    """Shows nothing: for tests and for use from Python."""

    def begin(self, title: str, todo: int, total: int) -> None: ...
    def settled(self, line: str) -> None: ...
    def end(self) -> None: ...


class Live:
    """A bar over the runs of a stage, and a line for each that ends."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console, refresh_per_second=4)
        self.console = console

    def begin(self, title: str, todo: int, total: int) -> None:
        self.row = self.bar.add_task(title, total=total, completed=total - todo)
        self.bar.start()

    def settled(self, line: str) -> None:
        self.bar.advance(self.row)
        self.console.print(Text(line))

    def end(self) -> None:
        self.bar.stop()
        self.bar.remove_task(self.row)


class Lines:
    """A line for each run that ends."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def begin(self, title: str, todo: int, total: int) -> None:
        self.title, self.done, self.total = title, total - todo, total
        say(self.console, f"{title}: {total} runs" + (f", {self.done} of them done before" if self.done else ""))

    def settled(self, line: str) -> None:
        self.done += 1
        say(self.console, f"{self.title}, {self.done}/{self.total}: {line}")

    def end(self) -> None:
        pass


def tables(search: Search) -> Iterator[Table]:
    """One for each stage."""
    for number, stage in enumerate(search.stages, 1):
        assert stage.chosen is not None
        title = f"{search.plan.name}, stage {number} of {len(search.stages)}"
        yield table_of(title, [*stage.settled, *stage.refused], stage.chosen.options, search.plan.metric)


def table_of(title: str, outcomes: Sequence[Outcome], chosen: Options, metric: str) -> Table:
    """The best first, what failed last."""
    table = Table(title=Text(title), title_justify="left")
    options = list(dict.fromkeys(option for outcome in outcomes for option in outcome.options))
    for option in options:
        table.add_column(Text(option))
    for heading in (metric, "±", "seconds", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for outcome in sorted(outcomes, key=lambda outcome: rank(outcome, metric)):
        figures = ["" if value is None else f"{value:.2f}" for value in (outcome.mean, outcome.spread)]
        note = "chosen" if outcome.options == chosen else outcome.failed or ""
        values = [str(outcome.options.get(option, "")) for option in options]
        table.add_row(*map(Text, (*values, *figures, f"{outcome.seconds:.1f}", note)))
    return table


def rank(outcome: Outcome, metric: str) -> float:
    return float("inf") if outcome.mean is None else -METRICS[metric] * outcome.mean
