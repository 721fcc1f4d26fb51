"""The part of the page on classes: which a task has, how well each is known, and what it is taken for."""

from collections.abc import Iterator, Sequence
from html import escape

from .classes import (
    best_first,
    class_table,
    confusion_matrix,
    mistakes,
    pairs_table,
    tasks_table,
    weakest,
)
from .data_set import class_names, is_task_aware
from .elements import card, fold, grid, html_table, remark, symbol_of, thumbnails
from .heat_map import confusion_map
from .rows import ReportRow
from .style import FEW_TASKS

MATRIX_CLASSES = 20  # of more, only the pairs are shown that are confused most
MOST_MATRICES = 6  # those of the best rows


def class_section(rows: Sequence[ReportRow]) -> Iterator[str]:
    """Nothing where no run of these rows recorded its answers. Pairs and mistakes are those of the best row."""
    rows = best_first(rows)
    if not rows:
        return
    names, best = class_names(rows[0].runs[0]), rows[0]
    told = "the classes of the image's task, which is given" if is_task_aware(best.runs[0]) else "all classes"
    yield remark(f"After the last task, on all test images. An answer is one of {told}.")
    yield fold("Classes of each task", html_table(tasks_table(best)))
    yield from _accuracies(rows)
    if len(names) <= MATRIX_CLASSES:
        yield "<h3>Confusion matrix</h3>" + remark("Answers in percent of the images of a class, all seeds together.")
        yield grid(map(_confusions, rows[:MOST_MATRICES]), "pair" if len(names) <= FEW_TASKS else "wide")
    elif (pairs := pairs_table(best)).rows:
        yield f"<h3>Confused most: {escape(best.label)}</h3>{html_table(pairs)}"
    if found := list(mistakes(best)):
        yield f"<h3>Most confident mistakes: {escape(best.label)}</h3>"
        yield remark("The wrong answers that it was most sure of, at most two of a kind; of one seed.") + thumbnails(
            found
        )


def _accuracies(rows: Sequence[ReportRow]) -> Iterator[str]:
    table = class_table(rows)
    shown = weakest(table, len(rows))
    folded = len(shown.rows) < len(table.rows)
    yield remark(f"The classes of the lowest accuracy, of {len(table.rows):,}:") if folded else ""
    yield html_table(shown) + (fold("All classes", html_table(table)) if folded else "")


def _confusions(row: ReportRow) -> str:
    description = f"Confusion matrix of {row.label}"
    drawn = confusion_map(confusion_matrix(row), class_names(row.runs[0]), description)
    return card(row.label, "", drawn, symbol_of(row))
