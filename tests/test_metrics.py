"""Metrics against hand-computed values, printed tables and properties that hold for every matrix."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dualnet.metrics import (
    FORGETTING,
    SPREADS,
    accuracy_matrix,
    average_accuracy,
    average_forgetting,
    forgetting_per_task,
    mean_and_spread,
    seen_accuracy,
    stability_summary,
    summary,
)

NAN = math.nan
# Three tasks: the first falls 80, 70, 60; the second 90, 85; the last is 75.
THREE = [[80, NAN, NAN], [70, 90, NAN], [60, 85, 75]]


def matrices(min_tasks: int = 1):
    """Accuracy matrices of a stream that is evaluated on the tasks seen so far."""

    def lower(size: int):
        values = hnp.arrays(np.float64, (size, size), elements=st.floats(0, 100))
        return values.map(lambda a: np.where(np.tri(size, dtype=bool), a, NAN))

    return st.integers(min_tasks, 7).flatmap(lower)


def test_hand_computed_example():
    expected = {"ACC": 220 / 3, "FM": 12.5, "LA": 245 / 3, "AIA": 700 / 9, "BWT": -12.5}
    assert summary(THREE) == pytest.approx(expected)
    assert forgetting_per_task(THREE).tolist() == [20, 5]
    assert seen_accuracy(THREE).tolist() == pytest.approx([80, 80, 220 / 3])


def test_the_worst_case_of_a_stream():
    """Three evaluations in the second task and one in the third; task 1 was worst in the middle of the second."""
    measured = [[72, NAN, NAN], [35, NAN, NAN], [70, NAN, NAN], [62, 81, NAN]]
    assert stability_summary(THREE, measured) == pytest.approx({"min-ACC": 58, "WC-ACC": (75 + 35 + 81) / 3})


def test_a_task_that_was_never_measured_has_no_worst_case():
    assert all(map(math.isnan, stability_summary(THREE, [[72, NAN, NAN]]).values()))


@given(matrices(min_tasks=2))
def test_the_worst_case_is_never_above_the_end(matrix):
    """Where the end is one of the evaluations."""
    measured = np.where(np.tri(len(matrix), k=-1, dtype=bool), matrix, NAN)
    metrics = stability_summary(matrix, measured)
    assert metrics["min-ACC"] <= matrix[-1, :-1].mean() + 1e-9
    assert metrics["WC-ACC"] <= average_accuracy(matrix) + 1e-9


def test_the_definitions_of_forgetting_differ_where_they_should():
    # Task 2 was lucky before it was learned; task 1 was best at the very end.
    matrix = [[50, 95, 0], [40, 60, 0], [55, 30, 80]]
    forgetting = {definition: average_forgetting(matrix, definition) for definition in FORGETTING}
    assert forgetting == pytest.approx({"paper": (-5 + 65) / 2, "seen": (-5 + 30) / 2, "all": (0 + 65) / 2})


def test_the_authors_round_each_accuracy_to_a_tenth_of_a_point():
    matrix = [[80.04, NAN], [70.06, 60]]
    assert average_forgetting(matrix, "all") == pytest.approx(80.0 - 70.1)
    assert average_forgetting(matrix) == pytest.approx(80.04 - 70.06)


@pytest.mark.parametrize("definition", FORGETTING)
def test_one_task_has_nothing_to_forget(definition):
    assert forgetting_per_task([[50]], definition).size == 0
    assert math.isnan(average_forgetting([[50]], definition)) and math.isnan(summary([[50]])["BWT"])


def test_takes_tensors():
    assert average_accuracy(torch.tensor(THREE)) == pytest.approx(220 / 3)


@pytest.mark.parametrize("values", [[[1, 2]], [1, 2], [], [[]]])
def test_a_matrix_must_be_square(values):
    with pytest.raises(ValueError, match="one row and one column for each task"):
        accuracy_matrix(values)


def test_unknown_names_are_refused_with_the_choices():
    with pytest.raises(ValueError, match="'best'; choose one of paper, seen, all"):
        average_forgetting(THREE, "best")
    with pytest.raises(ValueError, match="'iqr'; choose one of std, sem, ci95, authors"):
        mean_and_spread([1, 2], "iqr")


@given(matrices())
def test_final_accuracy_is_what_was_learned_plus_what_came_back(matrix):
    tasks, metrics = len(matrix), summary(matrix)
    transfer = metrics["BWT"] * (tasks - 1) / tasks if tasks > 1 else 0
    assert metrics["LA"] + transfer == pytest.approx(metrics["ACC"], abs=1e-9)


@given(matrices(min_tasks=2))
def test_forgetting_is_at_least_the_loss_since_learning(matrix):
    forgetting = {definition: average_forgetting(matrix, definition) for definition in FORGETTING}
    assert forgetting["seen"] >= -summary(matrix)["BWT"] - 1e-9
    assert forgetting["paper"] == forgetting["seen"]  # nothing was evaluated before it was learned
    assert forgetting["all"] >= 0
    assert forgetting["all"] >= forgetting["paper"] - 0.1 - 1e-9


@given(st.integers(2, 6).flatmap(lambda n: hnp.arrays(np.float64, (n, n), elements=st.floats(0, 100))))
def test_more_to_choose_from_never_forgets_less(matrix):
    assert np.all(forgetting_per_task(matrix, "paper") >= forgetting_per_task(matrix, "seen"))


@given(matrices())
def test_the_last_seen_accuracy_is_acc(matrix):
    assert seen_accuracy(matrix)[-1] == pytest.approx(average_accuracy(matrix), abs=1e-9)


@pytest.mark.parametrize("definition", FORGETTING)
def test_where_only_the_end_was_evaluated_there_is_acc_alone(definition):
    matrix = [[None, None], [60.0, 70.0]]
    metrics = summary(matrix)
    assert metrics.pop("ACC") == 65
    assert set(metrics) == {"FM", "LA", "AIA", "BWT"} and all(math.isnan(value) for value in metrics.values())
    assert math.isnan(average_forgetting(matrix, definition))


def test_spreads_by_hand():
    values = [1.0, 2.0, 6.0]  # mean 3, squared distances 4 + 1 + 9 = 14
    assert mean_and_spread(values, "std")[1] == pytest.approx(math.sqrt(14 / 2))
    assert mean_and_spread(values, "sem")[1] == pytest.approx(math.sqrt(14 / 2 / 3))
    assert mean_and_spread(values, "ci95")[1] == pytest.approx(4.302653 * math.sqrt(14 / 2 / 3))
    assert mean_and_spread(values, "authors")[1] == pytest.approx(2 * math.sqrt(14 / 3) / math.sqrt(3))


@pytest.mark.parametrize("kind", SPREADS)
def test_one_seed_has_no_spread_and_equal_seeds_have_none_to_show(kind):
    assert math.isnan(mean_and_spread([5.0], kind)[1])
    assert mean_and_spread([5.0, 5.0, 5.0], kind)[1] == 0
