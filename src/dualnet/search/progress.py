"""What a user sees of a search: its progress, and a table of each stage at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dualnet.runs.progress import say
from dualnet.search.plan import Options
from dualnet.search.point import Outcome, rank
from dualnet.text import printable

if TYPE_CHECKING:
    from dualnet.search.search import Search


class SearchDisplay:
    """A line for each run that ends and, on a terminal, a bar over the runs of a stage. Silent without a console."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(quiet=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        off = not self.console.is_terminal
        self.bar = Progress(*columns, console=self.console, refresh_per_second=4, disable=off)

    def begin(self, title: str, todo: int, total: int) -> None:
        self.title, self.done, self.total = title, total - todo, total
        self.task = self.bar.add_task(title, total=total, completed=self.done)
        self.bar.start()
        say(self.console, f"{title}: {total} runs" + (f", {self.done} of them finished before" if self.done else ""))

    def settled(self, line: str) -> None:
        self.done += 1
        self.bar.advance(self.task)
        say(self.console, f"{self.title}, {self.done}/{self.total}: {line}")

    def end(self) -> None:
        self.bar.stop()
        self.bar.remove_task(self.task)  # the next stage must not draw it again


def tables(search: Search) -> Iterator[Table]:
    """One per stage."""
    for number, stage in enumerate(search.stages, 1):
        assert stage.chosen is not None
        title = f"{search.plan.name}, stage {number} of {len(search.stages)}"
        yield table_of(title, [*stage.settled, *stage.refused], stage.chosen.options, search.plan.metric)


def table_of(title: str, outcomes: Sequence[Outcome], chosen: Options, metric: str) -> Table:
    """The best point first, failed ones last."""
    table = Table(title=Text(title), title_justify="left")
    options = list(dict.fromkeys(option for outcome in outcomes for option in outcome.options))
    for option in options:
        table.add_column(Text(option))
    for heading in (metric, "±", "seconds", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for outcome in sorted(outcomes, key=lambda outcome: rank(outcome, metric)):
        figures = ["" if value is None else f"{value:.2f}" for value in (outcome.mean, outcome.spread)]
        note = "chosen" if outcome.options == chosen else outcome.failed or ""
        cells = [*(outcome.options.get(option, "") for option in options), *figures, f"{outcome.seconds:.1f}", note]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table
