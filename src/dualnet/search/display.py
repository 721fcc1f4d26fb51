"""Terminal output of a search: its progress, and a table of each stage."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dualnet.experiments.progress import echo
from dualnet.search.plan import options_text
from dualnet.search.point import Point, shorten_names
from dualnet.text import compact_table, escape


class SearchDisplay:
    """Prints a line for each run that ends and, on a terminal, a progress bar for the stage. Silent by default."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(quiet=True)
        title, off = TextColumn("{task.description}", markup=False), not self.console.is_terminal
        columns = (title, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, refresh_per_second=4, disable=off)

    def begin(self, title: str, todo: int, total: int) -> None:
        self.title, self.done, self.total = title, total - todo, total
        self.task = self.bar.add_task(title, total=total, completed=self.done)
        self.bar.start()
        echo(self.console, f"{title}: {total} runs" + (f", {self.done} of them already finished" if self.done else ""))

    def run_ended(self, line: str) -> None:
        self.done += 1
        self.bar.advance(self.task)
        echo(self.console, f"{self.title}, {self.done}/{self.total}: {line}")

    def end(self) -> None:
        self.bar.stop()
        self.bar.remove_task(self.task)  # the next stage must not draw it again


def stage_table(title: str, points: Sequence[Point], chosen: Point, metric: str) -> Table:
    """The points of a stage, the best first and failed ones last. A line below has what all points share."""
    points = sorted(points, key=lambda point: point.rank(metric))
    names = shorten_names({option: option for point in points for option in point.options})
    columns = {name: [str(point.options.get(option, "")) for point in points] for name, option in names.items()}
    shared = {name: column[0] for name, column in columns.items() if len(set(column)) == 1}
    varied = {name: column for name, column in columns.items() if name not in shared}
    table = compact_table(title)
    if shared:
        table.caption, table.caption_justify = Text(escape(f"all points: {options_text(shared)}")), "left"
    for name in varied:
        table.add_column(Text(escape(name).replace("_", "_\n")), overflow="fold")  # a narrow heading
    for heading in (metric, "±", "seconds", ""):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
    for number, point in enumerate(points):
        figures = ["" if value is None else f"{value:.2f}" for value in (point.mean, point.spread)]
        note = "chosen" if point is chosen else point.failed or ""
        cells = [*(column[number] for column in varied.values()), *figures, f"{point.seconds:.1f}", note]
        table.add_row(*(Text(escape(cell)) for cell in cells))
    return table
