"""The supervised losses against plain loops over examples."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dualnet.batch import UNLABELLED
from dualnet.losses import MASKED, label_loss, soft_label_loss

ALLOWED = [range(3), range(3, 8)]  # the classes of two tasks


def example_logits(tasks: list[int], seed: int) -> Tensor:
    """Random logits [B, 8], masked outside of each example's task."""
    logits = 3 * torch.randn(len(tasks), 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for row, task in zip(logits, tasks, strict=True):
        row[[c for c in range(8) if c not in ALLOWED[task]]] = MASKED
    return logits


def probabilities(row: Tensor, classes: range, temperature: float = 1.0) -> np.ndarray:
    exponentials = np.exp(row.numpy()[list(classes)] / temperature)
    return exponentials / exponentials.sum()


examples = st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=1, max_size=6)


@given(examples, st.integers(0, 99))
def test_cross_entropy_over_the_labelled(examples, seed):
    tasks, known = [task for task, _ in examples], [is_known for _, is_known in examples]
    logits = example_logits(tasks, seed)
    labels = torch.tensor([ALLOWED[task][1] if is_known else UNLABELLED for task, is_known in examples])
    each = [
        -math.log(probabilities(row, ALLOWED[task])[1])
        for row, task, is_known in zip(logits, tasks, known, strict=True)
        if is_known
    ]
    assert label_loss(logits, labels).item() == pytest.approx(np.mean(each) if each else 0)


@given(examples, st.integers(0, 99), st.sampled_from([1.0, 2.0, 5.0]), st.sampled_from(["class", "example"]))
def test_divergence_from_the_stored_logits(examples, seed, temperature, mean):
    tasks, known = [task for task, _ in examples], [is_known for _, is_known in examples]
    logits, remembered = example_logits(tasks, seed), example_logits(tasks, seed + 1)
    each = []
    for now, then, task, is_known in zip(logits, remembered, tasks, known, strict=True):
        p, q = (probabilities(row, ALLOWED[task], temperature) for row in (then, now))
        terms = p * np.log(p / q)
        each += [terms.mean() if mean == "class" else terms.sum()] * is_known
    loss = soft_label_loss(logits, remembered, torch.tensor(known), temperature, mean)
    assert loss.item() == pytest.approx(np.mean(each) if each else 0)
    assert loss.item() >= -1e-12


def test_ten_times_the_mean_over_five_classes_is_two_per_example():
    logits, remembered = example_logits([1, 1, 1], 0), example_logits([1, 1, 1], 1)
    known = torch.tensor([True, False, True])
    over_classes, per_example = (soft_label_loss(logits, remembered, known, 2.0, mean) for mean in ("class", "example"))
    assert 10 * over_classes.item() == pytest.approx(2 * per_example.item())


def test_equal_logits_have_no_loss_and_no_gradient():
    logits = example_logits([0, 1, 1], 0).requires_grad_()
    loss = soft_label_loss(logits, logits.detach(), torch.ones(3, dtype=torch.bool), 2.0)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-12)
    assert logits.grad.abs().max() < 1e-12


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_gradients_are_finite_and_zero_for_masked_classes_and_unlabelled_examples(scale):
    tasks = [0, 1, 1]
    start = example_logits(tasks, 0).float()
    logits = torch.where(start == MASKED, start, scale * start).requires_grad_()
    labels = torch.tensor([1, 4, UNLABELLED])
    known = torch.tensor([False, True, False])
    loss = label_loss(logits, labels) + soft_label_loss(logits, example_logits(tasks, 1).float(), known, 2.0)
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()
    assert not logits.grad[start == MASKED].any()
    assert not logits.grad[2].any()
    assert logits.grad[:2].abs().sum() > 0


def test_stored_logits_are_masked_by_the_current_mask():
    # Answers remembered in a slot that was empty are zeros; classes outside of the task must get no probability.
    logits = example_logits([0], 0)
    loss = soft_label_loss(logits, torch.zeros(1, 8, dtype=torch.float64), torch.tensor([True]), 1.0)
    q = probabilities(logits[0], ALLOWED[0])
    assert loss.item() == pytest.approx((np.log(1 / 3) - np.log(q)).mean())
