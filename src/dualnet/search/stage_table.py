"""The table of a stage of a search, for a terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from dualnet.search.points import Point, shorten_names
from dualnet.search.search_file import options_text
from dualnet.text import compact_table, escape


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
        note = "chosen" if point is chosen else (point.failed or "").partition(";")[0]
        cells = [*(column[number] for column in varied.values()), *figures, f"{point.seconds:.1f}", note]
        table.add_row(*(Text(escape(cell)) for cell in cells))
    return table
