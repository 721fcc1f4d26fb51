"""Splits: examples by hand for what users see, properties for what must always hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualnet.data.splits import (
    Split,
    choose_tests,
    class_mask,
    divide_classes,
    make_benchmark,
    order_classes,
    permutation,
)

seeds = st.integers(0, 2**40)
names = st.lists(st.text("abcdef", min_size=1), min_size=1, max_size=20, unique=True)
FILES = ["0.png", "1.png", "2.png", "3.png"]


@given(st.integers(0, 200), seeds)
def test_a_shuffle_is_a_permutation(count: int, seed: int) -> None:
    assert sorted(permutation(count, seed)) == list(range(count))
    assert np.array_equal(permutation(count, seed), permutation(count, seed))


def test_shuffles_never_change() -> None:
    assert permutation(10, 7).tolist() == [6, 3, 4, 9, 0, 2, 8, 7, 5, 1]


@given(names, seeds)
def test_order_does_not_depend_on_how_the_disk_lists_classes(classes: list[str], seed: int) -> None:
    assert order_classes(classes) == sorted(classes)
    assert order_classes(classes, seed=seed) == order_classes(classes[::-1], seed=seed)
    assert sorted(order_classes(classes, seed=seed)) == sorted(classes)
    assert order_classes(classes, order=classes) == classes


@given(st.integers(1, 100), st.integers(1, 12), st.integers(1, 12))
def test_tasks_are_consecutive_and_the_last_may_be_smaller(num_classes: int, per_task: int, num_tasks: int) -> None:
    every = divide_classes(num_classes, per_task)
    *full, last = class_mask(every, num_classes).sum(dim=1).tolist()
    assert set(full) <= {per_task} and 0 < last <= per_task
    assert [c for task in every for c in task] == list(range(num_classes))
    assert divide_classes(num_classes, [*full, last]) == every
    if num_tasks > len(every):
        with pytest.raises(ValueError, match="lower num_tasks or classes_per_task"):
            divide_classes(num_classes, per_task, num_tasks)
    else:
        assert divide_classes(num_classes, per_task, num_tasks) == every[:num_tasks]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.floats(0.01, 0.99), seeds)
def test_every_class_gives_its_share(classes: list[int], share: float, seed: int) -> None:
    files = {str(label): [f"{label}-{row}.png" for row in range(classes.count(label))] for label in set(classes)}
    tests = choose_tests(files, share, seed)
    for paths in files.values():
        count, kept = len(paths), len(tests & set(paths))
        assert abs(kept - share * count) <= 1
        assert count == 1 or 0 < kept < count


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: divide_classes(0, 5), "the 0 there are"),
        (lambda: divide_classes(10, 5, 3), "3 tasks of 5 .*num_tasks"),
        (lambda: divide_classes(5, [2, 2]), r"classes_per_task: \[2, 2\] for 5 classes; .* class_order"),
        (lambda: divide_classes(5, []), r"classes_per_task: \[\] for 5 classes"),
        (lambda: choose_tests({"a": FILES}, 1.0, 0), "test_share: 1.0"),
        (lambda: choose_tests({"a": FILES}, float("nan"), 0), "test_share: nan"),
        (lambda: order_classes(["a"], order=["b"]), "class_order names 'b', .* a"),
        (lambda: order_classes(["a", "b"], order=["a", "a"]), "class_order names 'a' twice"),
        (lambda: order_classes(["a"], order=["a"], seed=1), "class_order and order_seed"),
        (lambda: small([0, 0, 1, 1], [0, 1, 0, 0]), "class 'one' has no test images; add some"),
        (
            lambda: Split(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1], bool), ["zero", "one"], [[0, 1], [1]], "abcd"),
            "class 'one' is in 2 tasks, .* a Task of its own examples for each task",
        ),
        (lambda: small([0, 0, 1, 1], [1, 1, 1, 1]), r"class 'zero' has no training images \(and 1 more classes\); add"),
    ],
)
def test_mistakes_are_explained(call, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def small(labels: list[int], is_test: list[int], input_size: int | None = None):
    array = np.zeros((len(labels), 3, 2, 2), np.uint8)
    names = [f"{row}.png" for row in range(len(labels))]
    split = Split(np.array(labels), np.array(is_test, bool), ["zero", "one"], divide_classes(2, 1), names)
    return make_benchmark(array, split, input_size)


def test_rows_and_labels_belong_together() -> None:
    benchmark = small([1, 0, 1, 0, 1], [0, 0, 1, 1, 0], input_size=4)
    first, second = benchmark.tasks
    assert first.train.rows.tolist() == [1] and first.test.rows.tolist() == [3]
    assert second.train.rows.tolist() == [0, 4] and second.test.labels.tolist() == [1]
    assert benchmark.spec.input_size == 4 and benchmark.spec.network_size == (4, 4)
