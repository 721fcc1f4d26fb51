"""The classes of a setting: their tasks, their accuracy at the end of the run, and what they were taken for."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from dualnet.metrics import Matrix
from dualnet.runs.class_results import ClassResults, Mistake

from .data_set import class_names, class_tasks, is_task_aware
from .rows import DASH, ReportRow, by_accuracy, mean_and_spread
from .tables import TextTable

SHOWN_CLASSES, WEAKEST = 30, 15  # of more classes, only the weakest are shown
MOST_PAIRS = 15


def results_of(row: ReportRow) -> list[ClassResults]:
    """Of the seeds that have them, and the same classes: a folder of an older version has none."""
    num_classes = len(class_names(row.runs[0]))
    return [run.classes for run in row.runs if run.classes is not None and len(run.classes.counts) == num_classes]


def best_first(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Those whose classes are known."""
    return [row for row in by_accuracy(rows) if results_of(row)]


def tasks_table(row: ReportRow) -> TextTable:
    names = class_names(row.runs[0])
    lines = [[str(task), ", ".join(names[n] for n in of)] for task, of in enumerate(class_tasks(row.runs[0]), 1)]
    return TextTable(["task", "classes"], lines, numeric=range(0))


def class_tables(rows: Sequence[ReportRow]) -> list[TextTable]:
    """What the text has of classes: their accuracy, and which are confused; nothing where no run recorded it."""
    known = best_first(rows)
    return [class_table(known, weakest(known)), pairs_table(known[0])] if known else []


def class_table(rows: Sequence[ReportRow], classes: Sequence[int] | None = None) -> TextTable:
    """A line for each class, or for some; a column for each row; of a single one also what it was most taken for."""
    tasks, names, images = class_tasks(rows[0].runs[0]), class_names(rows[0].runs[0]), results_of(rows[0])[0].counts
    places = [", ".join(str(task) for task, of in enumerate(tasks, 1) if n in of) or DASH for n in range(len(names))]
    header, columns = ["class", *(row.label for row in rows)], [names, *(_accuracy_texts(row) for row in rows)]
    if len(rows) == 1:
        header, columns = ["class", "accuracy ↑", "most often taken for"], [*columns, _taken_for(rows[0])]
    columns += [places, [f"{count:,}" for count in images]]
    numeric = [*range(1, 1 + len(rows)), len(header), len(header) + 1]
    lines = [[column[n] for column in columns] for n in (range(len(names)) if classes is None else classes)]
    return TextTable([*header, "task", "test images"], lines, numeric)


def _accuracy_texts(row: ReportRow) -> list[str]:
    """Of each class: the mean over seeds, and their standard deviation where there are several."""
    seeds = zip(*(one.accuracies() for one in results_of(row)), strict=True)
    figures = [mean_and_spread(values, "std") for values in seeds]
    texts = [f"{mean:.1f}" if math.isnan(around) else f"{mean:.1f} ± {around:.1f}" for mean, around in figures]
    return [DASH if math.isnan(mean) else text for (mean, _), text in zip(figures, texts, strict=True)]


def _taken_for(row: ReportRow) -> list[str]:
    """For each class, the wrong answer that was given most often, with its share of the class's images."""
    names, totals, most = class_names(row.runs[0]), counts(row), dict[int, tuple[int, int]]()
    for (truth, answer), count in confusions(row).items():
        most[truth] = max(most.get(truth, (0, 0)), (count, answer))
    shares = {
        truth: f"{names[answer]} ({100 * count / totals[truth]:.0f} %)" for truth, (count, answer) in most.items()
    }
    return [shares.get(number, DASH) for number in range(len(names))]


def weakest(rows: Sequence[ReportRow]) -> list[int]:
    """Of many classes, those of the lowest accuracy, by the mean over the rows; all if they are few."""
    means = np.mean([np.mean([one.accuracies() for one in results_of(row)], axis=0) for row in rows], axis=0)
    few = len(means) <= SHOWN_CLASSES
    return list(range(len(means))) if few else np.argsort(means, kind="stable")[:WEAKEST].tolist()


def confusions(row: ReportRow) -> Counter[tuple[int, int]]:
    """Test images by class and wrong answer, of all seeds together."""
    return sum((Counter(one.confusions) for one in results_of(row)), Counter())


def counts(row: ReportRow) -> list[int]:
    """Test images of each class, of all seeds together."""
    return np.sum([one.counts for one in results_of(row)], axis=0).tolist()


def confusion_matrix(row: ReportRow) -> Matrix:
    """In percent of the images of a class, the row; NaN for what cannot be the answer, or was never asked."""
    totals, tasks = np.array(counts(row), dtype=np.float64), class_tasks(row.runs[0])
    matrix = np.zeros((len(totals), len(totals)))
    for pair, count in confusions(row).items():
        matrix[pair] = count
    np.fill_diagonal(matrix, totals - matrix.sum(axis=1))
    if is_task_aware(row.runs[0]):
        possible = np.zeros_like(matrix, dtype=bool)
        for task in tasks:
            possible[np.ix_(task, task)] = True
        matrix[~possible] = np.nan
    totals[totals == 0] = np.nan
    return 100 * matrix / totals[:, None]


def pairs_table(row: ReportRow) -> TextTable:
    """The pairs that are confused most."""
    names, totals = class_names(row.runs[0]), counts(row)
    pairs = sorted(confusions(row).items(), key=lambda item: (-item[1], item[0]))[:MOST_PAIRS]
    lines = [[names[truth], names[answer], f"{100 * count / totals[truth]:.0f} %"] for (truth, answer), count in pairs]
    return TextTable(["class", "taken for", "of its images"], lines, numeric=[2])


def mistakes(row: ReportRow) -> Iterator[tuple[Mistake, str, str]]:
    """The most confident ones of the first seed that has some, with the names of class and answer."""
    names = class_names(row.runs[0])
    for mistake in next((one.mistakes for one in results_of(row) if one.mistakes), ()):
        yield mistake, names[mistake.truth], names[mistake.answer]
