"""The option `batch_classes`: over which classes the loss of a batch normalises."""

import pytest
import torch

from dualnet.batch import UNLABELLED
from dualnet.learners import LEARNERS

every_replaying_learner = pytest.mark.parametrize(
    "name", [name for name in LEARNERS if hasattr(LEARNERS[name].Config, "batch_classes")]
)


def test_the_formula(small_learner):
    """-log softmax over the classes present, computed by hand; an example without a label counts nowhere."""
    learner = small_learner("er", batch_classes="present")
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0, 1.0, 0.0, 2.0, 0.0, 0.0], [9.0] * 6])
    loss = learner.batch_loss(logits, torch.tensor([1, 3, UNLABELLED]))
    first = torch.tensor(2.0).exp() / (torch.tensor(2.0).exp() + torch.tensor(4.0).exp())
    second = torch.tensor(2.0).exp() / (torch.tensor(1.0).exp() + torch.tensor(2.0).exp())
    torch.testing.assert_close(loss, -(first.log() + second.log()) / 2)


def test_all_is_the_plain_cross_entropy(small_learner):
    logits, labels = torch.randn(4, 6), torch.tensor([0, 5, 2, 2])
    loss = small_learner("er").batch_loss(logits, labels)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, labels))


def test_without_any_label_it_is_zero(small_learner):
    learner = small_learner("er", batch_classes="present")
    assert learner.batch_loss(torch.randn(2, 6), torch.full((2,), UNLABELLED)) == 0


@every_replaying_learner
@pytest.mark.parametrize(("classes", "moves"), [("all", True), ("present", False)])
def test_a_class_that_is_absent_gets_no_gradient_from_the_batch(name, classes, moves, small_learner, random_batch):
    """In the first task nothing is replayed: only the batch could move the head's row of an absent class."""
    learner = small_learner(name, batch_classes=classes, **({"slow_rounds": 0} if name == "dualnet" else {}))
    batch = random_batch(0)
    batch.labels[:] = 0
    (head,) = [weight for key, weight in learner.named_parameters() if key.endswith("head.weight")]
    before = head.detach().clone()
    learner.observe(batch)
    assert torch.equal(head[1], before[1]) != moves
