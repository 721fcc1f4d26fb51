"""Legends of the report page: symbols of rows, colours of tasks, scales of colours."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualnet.report.html import elements
from dualnet.report.rows import Series
from dualnet.report.style import FEW_TASKS, GLYPHS, PALETTE, Limits, accuracy_colour, marker_index, task_colour


@dataclass(frozen=True, slots=True)
class Icon:
    colour: str  # of CSS
    glyph: str


def icon_of(series: Series) -> Icon:
    return Icon(f"var(--row-{series.index % len(PALETTE)})", GLYPHS[marker_index(series)])


def legend(series: Sequence[Series]) -> str:
    return elements().legend([(line.index, icon_of(line), line.label) for line in series])


def task_legend(num_tasks: int, num_shown: int | None = None, word: str = "task") -> str:
    """The colours of tasks (or classes): a named entry for each of a few, else a colour scale."""
    count = num_tasks if num_shown is None else num_shown
    if count > FEW_TASKS:
        colours = [task_colour((count - 1) * i / 8, num_tasks) for i in range(9)]
        return elements().scale(f"{word} 1", colours, f"{word} {count}")
    return elements().legend([(i, Icon(task_colour(i, num_tasks), "●"), f"{word} {i + 1}") for i in range(count)])


def accuracy_legend(limits: Limits) -> str:
    """The colour scale of accuracies in a heat map."""
    colours = [accuracy_colour(share, (0, 8)) for share in range(9)]
    return elements().scale(f"{limits[0]:.0f} %", colours, f"{limits[1]:.0f} %")
