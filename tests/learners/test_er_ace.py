"""ER-ACE against a derivation example by example: its losses, its update, and the classes that count as seen."""

import copy
import math

import pytest
import torch
from torch import Tensor

from dualnet.batch import UNLABELLED, Batch, StreamSpec

SEPARATE = {"updates": 1, "replay_size": 3, "lr": 0.1, "replay_weight": 0.6}  # batches of 4: two passes


def mean_surprise(logits: Tensor, labels: Tensor, classes: set[int]) -> Tensor:
    """-log of the probability of the label among the given classes, the mean over the examples with a label."""
    known = [(row, int(label)) for row, label in zip(logits, labels, strict=True) if label != UNLABELLED]
    each = [torch.stack([row[c].exp() for c in sorted(classes)]).sum().log() - row[label] for row, label in known]
    return torch.stack(each).mean()


def in_one_task(images: Tensor, labels: list[int]) -> Batch:
    return Batch(images, torch.tensor(labels))


@pytest.fixture
def images(random_batch) -> Tensor:
    return random_batch(3).images


@pytest.mark.parametrize("aware", [False, True])
def test_one_update_is_the_asymmetric_cross_entropy(aware, spec: StreamSpec, small_learner, images: Tensor) -> None:
    learner = small_learner("er_ace", spec=spec if aware else spec.task_free(), **SEPARATE)
    first, now = torch.tensor([0, 1, 1, 0]), torch.tensor([2, UNLABELLED, 3, 2])
    learner.observe(Batch(images, first, torch.zeros_like(first)))
    batch = Batch(images.flip(3), now, torch.full_like(now, int(aware)))
    by_hand = copy.deepcopy(learner)
    losses = learner.observe(batch)

    by_hand.memory.add(batch, by_hand.generator)
    past = by_hand.replay(batch, now)
    # Without task ids no class is masked: the classes are chosen here. A replay of task 0 is among its classes.
    now_logits, past_logits = (by_hand(each, None) for each in (batch.images, past.images))
    expected = mean_surprise(now_logits, now, {2, 3})
    replayed = mean_surprise(past_logits, past.labels, {0, 1} if aware else {0, 1, 2, 3})
    torch.testing.assert_close(losses["labels"], expected.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(losses["replay"], replayed.detach(), atol=1e-4, rtol=1e-4)
    weights = [*by_hand.net.parameters()]
    grads = torch.autograd.grad(expected + 0.6 * replayed, weights)
    for weight, grad, learned in zip(weights, grads, learner.net.parameters(), strict=True):
        torch.testing.assert_close(learned, weight - 0.1 * grad, atol=1e-4, rtol=1e-3)


def test_a_batch_changes_no_output_of_other_classes(spec: StreamSpec, small_learner, images: Tensor) -> None:
    """ER does: its softmax is over all classes. The replay, which would too, has weight 0 here."""
    changed = {}
    for name in ("er_ace", "er"):
        learner = small_learner(name, spec=spec.task_free(), replay_weight=0.0)
        before = learner.net.head.weight.detach().clone()
        learner.observe(in_one_task(images, [1, 4, 4, 1]))
        changed[name] = (learner.net.head.weight != before).any(dim=1).nonzero().flatten().tolist()
    assert changed == {"er_ace": [1, 4], "er": [0, 1, 2, 3, 4, 5]}


def test_a_batch_of_one_class_has_no_loss_of_its_own(spec: StreamSpec, small_learner, images: Tensor) -> None:
    losses = small_learner("er_ace", spec=spec.task_free()).observe(in_one_task(images, [2, 2, 2, 2]))
    assert losses["labels"] == 0 and losses["replay"] == 0, "nothing else is seen"


def test_replay_alone_still_knows_the_classes_seen(spec: StreamSpec, small_learner, images: Tensor) -> None:
    learner = small_learner("er_ace", spec=spec.task_free(), unlabelled="replay")
    learner.observe(in_one_task(images, [0, 1, 2, 0]))
    losses = learner.observe(Batch(images, None))
    assert losses["labels"] == 0 and 0 < losses["replay"] < math.inf
    assert learner.seen.tolist() == [True, True, True, False, False, False]


def test_classes_are_added_unseen_and_removed_with_what_was_seen(spec, small_learner, images: Tensor) -> None:
    learner = small_learner("er_ace", spec=spec.task_free())
    learner.observe(in_one_task(images, [1, 2, 5, UNLABELLED]))
    learner.add_classes(1)
    assert learner.seen.tolist() == [False, True, True, False, False, True, False]
    learner.remove_class(1)
    assert learner.seen.tolist() == [False, True, False, False, True, False]
    assert learner.observe(in_one_task(images, [5, 0, 5, 5]))["labels"].isfinite()
