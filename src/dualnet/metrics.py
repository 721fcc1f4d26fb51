"""Metrics of the accuracy matrix of a run, and their spread over seeds. Every definition has a name.

The matrix is square: row i holds the test accuracies in percent after task i, column j those of task j, NaN means "not
evaluated". See the DualNet paper, appendix "Datasets and Evaluation Metrics". A metric that is undefined is NaN
(forgetting with one task, or if only the end was evaluated), and so is the spread of a single seed.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dualnet.ttest import Sample, two_sided_t

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
METRICS = ("ACC", "FM", "LA", "AIA", "BWT")  # of every run, see summary
FORGETTING = ("paper", "seen", "all")  # definitions, see forgetting_per_task


def accuracy_matrix(values: ArrayLike) -> Matrix:
    """The values as a square matrix of floats; None becomes NaN.

    >>> accuracy_matrix([[80, None], [60, 70]])
    array([[80., nan],
           [60., 70.]])
    """
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ValueError(f"accuracy matrix has shape {matrix.shape}; give one row and one column for each task")
    return matrix


def average_accuracy(accuracy: ArrayLike) -> float:
    """ACC: mean accuracy over all tasks after the last one.

    >>> average_accuracy([[80, None], [60, 70]])
    65.0
    """
    return float(accuracy_matrix(accuracy)[-1].mean())


def forgetting_per_task(accuracy: ArrayLike, definition: str = "paper") -> Vector:
    """Best accuracy minus the final one, for each task but the last, by one of the definitions in FORGETTING.

    paper: the best over l in 1..T-1, as defined in the paper. Negative if the last task improved the accuracy.
    seen: the best over l in j..T-1, without the evaluations before task j was learned (Chaudhry et al., 2018).
    all: the authors' code: the best over l in 1..T, with accuracies rounded to 0.1 points. Never negative.

    >>> matrix = [[50, 90, 0], [40, 60, 0], [55, 30, 80]]
    >>> forgetting_per_task(matrix, "paper"), forgetting_per_task(matrix, "seen"), forgetting_per_task(matrix, "all")
    (array([-5., 60.]), array([-5., 30.]), array([ 0., 60.]))
    """
    if definition not in FORGETTING:
        raise ValueError(f"unknown definition of forgetting {definition!r}; choose one of {', '.join(FORGETTING)}")
    matrix = accuracy_matrix(accuracy)
    if definition == "seen":
        matrix = np.where(np.tri(len(matrix), dtype=bool), matrix, np.nan)
    if definition == "all":  # the authors also round the mean, which we do not
        matrix = np.round(matrix / 100, 3) * 100
    # np.nanmax would warn about columns that were not evaluated.
    best, final = np.fmax.reduce(matrix[:-1], axis=0, initial=np.nan)[:-1], matrix[-1, :-1]
    return (np.maximum(best, final) if definition == "all" else best) - final


def average_forgetting(accuracy: ArrayLike, definition: str = "paper") -> float:
    """FM: mean forgetting over all tasks but the last."""
    return _mean(forgetting_per_task(accuracy, definition))


def seen_accuracy(accuracy: ArrayLike) -> Vector:
    """Mean accuracy over the tasks seen so far, after each task.

    >>> seen_accuracy([[80, None], [60, 70]])
    array([80., 65.])
    """
    matrix = accuracy_matrix(accuracy)
    return np.array([row[: task + 1].mean() for task, row in enumerate(matrix)])


def summary(accuracy: ArrayLike) -> dict[str, float]:
    """All metrics of one run by name.

    LA: mean accuracy on each task right after it was learned (Riemer et al., 2019). AIA, average incremental
    accuracy: mean of `seen_accuracy` over all tasks (Rebuffi et al., 2017). BWT: mean change of accuracy since a task
    was learned, a_Tj - a_jj over j < T (Lopez-Paz and Ranzato, 2017).

    >>> summary([[80, None], [60, 70]])
    {'ACC': 65.0, 'FM': 20.0, 'LA': 75.0, 'AIA': 72.5, 'BWT': -20.0}
    """
    matrix = accuracy_matrix(accuracy)
    learned = np.diagonal(matrix)
    return {
        "ACC": average_accuracy(matrix),
        "FM": average_forgetting(matrix),
        "LA": float(learned.mean()),
        "AIA": float(seen_accuracy(matrix).mean()),
        "BWT": _mean((matrix[-1] - learned)[:-1]),
    }


def stability_summary(accuracy: ArrayLike, measured: ArrayLike) -> dict[str, float]:
    """Metrics of a run whose earlier tasks were evaluated during training, by name (De Lange et al., 2023).

    `measured` has a row for each evaluation and a column for each task, NaN if the task was not learned yet.
    min-ACC: mean lowest accuracy of all tasks but the last. WC-ACC: the same including the last one's final accuracy.

    >>> stability_summary([[80, None], [60, 70]], [[50, None], [60, None]])
    {'min-ACC': 50.0, 'WC-ACC': 60.0}
    """
    matrix = accuracy_matrix(accuracy)
    lowest = _mean(np.fmin.reduce(np.asarray(measured, dtype=np.float64), axis=0)[:-1])
    return {"min-ACC": lowest, "WC-ACC": float((matrix[-1, -1] + (len(matrix) - 1) * lowest) / len(matrix))}


def mean_and_spread(seeds: ArrayLike, kind: str = "std") -> tuple[Any, Any]:
    """Mean over the first axis, and the spread by one of the kinds in SPREADS.

    >>> mean_and_spread([[1.0, 2.0], [3.0, 2.0]], "sem")
    (array([2., 2.]), array([1., 0.]))
    """
    if kind not in SPREADS:
        raise ValueError(f"unknown spread {kind!r}; choose one of {', '.join(SPREADS)}")
    values = np.asarray(seeds, dtype=np.float64)
    mean = np.apply_along_axis(fmean, 0, values)
    return mean, SPREADS[kind](values) if len(values) > 1 else mean * np.nan


def sample_of(values: Sequence[float]) -> Sample:
    """The values of several seeds as a sample, to be compared with another one."""
    return Sample(fmean(values), float(np.std(values, ddof=1)) if len(values) > 1 else None, len(values))


def _sem(values: Matrix) -> Vector:
    return values.std(axis=0, ddof=1) / math.sqrt(len(values))


SPREADS: dict[str, Callable[[Matrix], Vector]] = {
    "std": lambda values: values.std(axis=0, ddof=1),  # sample standard deviation
    "sem": _sem,  # standard error of the mean
    # half the width of the 95 % confidence interval of the mean, by Student's t
    "ci95": lambda values: two_sided_t(0.05, len(values) - 1) * _sem(values),
    # what the authors' code prints: 2 std / sqrt(runs), with the population standard deviation
    "authors": lambda values: 2 * values.std(axis=0, ddof=0) / math.sqrt(len(values)),
}


def _mean(values: Vector) -> float:
    return float(values.mean()) if values.size else math.nan
