"""The option `logit_adjustment`: label losses of logits + tau log(how often a class is learned)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualnet.batch import UNLABELLED
from dualnet.losses import class_shares, label_loss, log_prior

LEARNERS = ("er", "mir", "derpp", "dualnet")


@given(st.lists(st.integers(-1, 4), max_size=20))
def test_shares_of_the_classes(labels):
    known = [label for label in labels if label != UNLABELLED]
    expected = [known.count(c) / len(known) if known else 0.0 for c in range(5)]
    assert class_shares(torch.tensor(labels, dtype=torch.int64), 5).tolist() == pytest.approx(expected)


def test_a_class_that_was_never_learned_counts_as_an_average_one():
    found = log_prior(torch.tensor([1.5, 0.5, 0.0, 0.0]))
    assert found.exp().tolist() == pytest.approx([0.75, 0.25, 0.25, 0.25])
    assert log_prior(torch.zeros(4)).exp().tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_equal_logits_are_optimal_however_unequal_the_classes_are(weight):
    """Where images say nothing, no class is preferred: a bias of 0 gets no gradient; without the option it does."""
    batch, memory = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 1, 2, 2, 2, 2, UNLABELLED])
    prior = log_prior(class_shares(batch, 3) + weight * class_shares(memory, 3))
    for offset, balanced in ((prior, True), (torch.zeros(3), False)):
        bias = torch.zeros(3, requires_grad=True)
        now, past = (label_loss((bias + offset).expand(len(labels), 3), labels) for labels in (batch, memory))
        (gradient,) = torch.autograd.grad(now + weight * past, bias)
        assert (gradient.abs().max().item() < 1e-6) == balanced


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("unlabelled", [False, True])
def test_the_losses_of_an_update_by_hand(name, unlabelled, small_learner, random_batch):
    options = {"logit_adjustment": 0.7, "updates": 1, "replay_size": 6, "replay_weight": 1.5, "unlabelled": "replay"}
    learner = small_learner(name, **options)
    for seed in range(3):
        learner.observe(random_batch(seed, task=seed % 2))
    seen, forward = [], learner.batch_logits
    learner.batch_logits = lambda net, *batches: seen.append((forward(net, *batches), batches)) or seen[-1][0]
    batch = random_batch(9, task=1)
    if unlabelled:
        batch.labels[:] = UNLABELLED
    losses = learner.observe(batch)

    ((logits, (_, *replays)),) = seen
    weight = learner.config.replay_weight
    stored = [label for label in learner.memory.labels.tolist() if label != UNLABELLED]
    now = [label for label in batch.labels.tolist() if label != UNLABELLED]
    shares = [share(now, c) + weight * share(stored, c) for c in range(learner.spec.num_classes)]
    offset = [0.7 * math.log(s / sum(shares) if s else 1 / len(shares)) for s in shares]
    assert losses["labels"].item() == pytest.approx(by_hand(logits[0], batch.labels, offset), abs=1e-4)
    assert losses["replay"].item() == pytest.approx(by_hand(logits[-1], replays[-1].labels, offset), abs=1e-4)


def share(labels: list[int], label: int) -> float:
    return labels.count(label) / len(labels) if labels else 0.0


def by_hand(logits: torch.Tensor, labels: torch.Tensor, offset: list[float]) -> float:
    each = []
    for row, label in zip(logits.detach().double().tolist(), labels.tolist(), strict=True):
        if label != UNLABELLED:
            adjusted = [logit + added for logit, added in zip(row, offset, strict=True)]
            each.append(math.log(sum(math.exp(value) for value in adjusted)) - adjusted[label])
    return sum(each) / len(each) if each else 0.0
