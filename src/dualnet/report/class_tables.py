"""Results by class: the classes of each task, their accuracy after the last task, and confusions between them."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dualnet.experiments.final_predictions import FinalPredictions
from dualnet.experiments.record import RunRecord
from dualnet.metrics import Matrix, mean_and_spread
from dualnet.report.cells import DASH, Cell, Number, Table
from dualnet.report.rows import ReportRow, by_accuracy
from dualnet.report.stream_facts import class_names, class_tasks, is_task_aware

MAX_CLASSES, NUM_WEAKEST = 30, 15  # with more than MAX_CLASSES, only the NUM_WEAKEST weakest are shown
MAX_PAIRS = 15


def names_of(run: RunRecord) -> list[str]:
    """The class names by number; sorted if every seed has a class order of its own."""
    return sorted(class_names(run)) if run.has_order_by_seed else class_names(run)


def numbers_of(run: RunRecord) -> list[int]:
    """The number in `names_of` of each class of a run."""
    names = class_names(run)
    numbers = {name: number for number, name in enumerate(names_of(run))}
    return [numbers[name] for name in names] if run.has_order_by_seed else list(range(len(names)))


def tasks_of(row: ReportRow) -> list[list[int]]:
    """Class numbers by task; empty if they are not recorded, or if there are several seeds with their own orders."""
    run, numbers = row.runs[0], numbers_of(row.runs[0])
    several_orders = run.has_order_by_seed and len(row.runs) > 1
    return [] if several_orders else [sorted(numbers[n] for n in task) for task in class_tasks(run)]


def predictions_of(row: ReportRow) -> list[FinalPredictions]:
    """The final predictions of the seeds that recorded them."""
    runs = [run for run in row.runs if names_of(run) == names_of(row.runs[0])]
    return [run.classes.renumbered(numbers_of(run)) for run in runs if run.classes is not None]


def rows_with_classes(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """The rows with final predictions, by decreasing ACC."""
    return [row for row in by_accuracy(rows) if predictions_of(row)]


def tasks_table(row: ReportRow) -> Table:
    names = names_of(row.runs[0])
    lines = [[str(task), ", ".join(names[n] for n in of)] for task, of in enumerate(tasks_of(row), 1)]
    return Table(["task", "classes"], lines)


def class_tables(rows: Sequence[ReportRow]) -> list[Table]:
    """Accuracy by class and the most confused pairs; no tables if no run recorded them."""
    known = rows_with_classes(rows)
    return [class_table(known, weakest_classes(known)), confused_pairs_table(known[0])] if known else []


def class_table(rows: Sequence[ReportRow], classes: Sequence[int] | None = None) -> Table:
    """A line for each class, or for some of them; a column for each row. For a single row also its confusions."""
    tasks, names, images = tasks_of(rows[0]), names_of(rows[0].runs[0]), predictions_of(rows[0])[0].counts
    tasks = tasks if all(tasks_of(row) == tasks for row in rows) else []
    header, columns = ["class", *(row.label for row in rows)], [names, *map(_accuracies, rows)]
    if len(rows) == 1:
        header, columns = ["class", "accuracy ↑", "most often confused with"], [*columns, _confused_with(rows[0])]
    columns += [[_places(number, tasks) for number in range(len(names))], [Number(count) for count in images]]
    lines = [[column[n] for column in columns] for n in (range(len(names)) if classes is None else classes)]
    return Table([*header, "task", "test images"], lines)


def _accuracies(row: ReportRow) -> list[Cell]:
    """The accuracy of each class: mean over seeds, and standard deviation if there are several."""
    figures = zip(*mean_and_spread([seed.accuracies() for seed in predictions_of(row)]), strict=True)
    return [Number(mean, "accuracy", None if math.isnan(std) else std) for mean, std in figures]


def _places(number: int, tasks: Sequence[Sequence[int]]) -> Number:
    """The tasks of a class."""
    first, *others = [task for task, of in enumerate(tasks, 1) if number in of] or [None]
    return Number(first, note="".join(f", {task}" for task in others))


def _confused_with(row: ReportRow) -> list[Cell]:
    """For each class the most frequent wrong prediction, with its share of the class's test images."""
    names, totals, most = names_of(row.runs[0]), num_test_images(row), dict[int, tuple[int, int]]()
    for (truth, answer), count in confusions(row).items():
        most[truth] = max(most.get(truth, (0, 0)), (count, answer))
    shares = {
        truth: f"{names[answer]} ({100 * count / totals[truth]:.0f} %)" for truth, (count, answer) in most.items()
    }
    return [shares.get(number, DASH) for number in range(len(names))]


def weakest_classes(rows: Sequence[ReportRow]) -> list[int]:
    """The classes with the lowest mean accuracy over the rows, or all classes if there are few."""
    means = np.mean([np.mean([seed.accuracies() for seed in predictions_of(row)], axis=0) for row in rows], axis=0)
    if len(means) <= MAX_CLASSES:
        return list(range(len(means)))
    return np.argsort(means, kind="stable")[:NUM_WEAKEST].tolist()


def confusions(row: ReportRow) -> Counter[tuple[int, int]]:
    """The number of test images by class and wrong prediction, summed over seeds."""
    return sum((Counter(seed.confusions) for seed in predictions_of(row)), Counter())


def num_test_images(row: ReportRow) -> list[int]:
    """The number of test images of each class, summed over seeds."""
    return np.sum([seed.counts for seed in predictions_of(row)], axis=0).tolist()


def confusion_matrix(row: ReportRow) -> Matrix:
    """Predictions (columns) in percent of the images of a class (rows).

    NaN for predictions that are impossible because the task is given, and for classes without test images.
    """
    totals, tasks = np.array(num_test_images(row), dtype=np.float64), tasks_of(row)
    matrix = np.zeros((len(totals), len(totals)))
    for pair, count in confusions(row).items():
        matrix[pair] = count
    np.fill_diagonal(matrix, totals - matrix.sum(axis=1))
    if is_task_aware(row.runs[0]) and tasks:
        possible = np.zeros_like(matrix, dtype=bool)
        for task in tasks:
            possible[np.ix_(task, task)] = True
        matrix[~possible] = np.nan
    totals[totals == 0] = np.nan
    return 100 * matrix / totals[:, None]


def confused_pairs_table(row: ReportRow) -> Table:
    names, totals = names_of(row.runs[0]), num_test_images(row)
    pairs = sorted(confusions(row).items(), key=lambda item: (-item[1], item[0]))[:MAX_PAIRS]
    lines = [
        [names[truth], names[answer], Number(100 * count / totals[truth], "share")] for (truth, answer), count in pairs
    ]
    return Table(["class", "predicted as", "share of its images"], lines)
