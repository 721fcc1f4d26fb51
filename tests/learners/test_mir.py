"""MIR's choice against a copy of the learner that takes the step for real, and the trial that moves nothing."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.batch import UNLABELLED, Batch
from dualnet.learners import MIR
from dualnet.learners.mir import highest


@pytest.fixture
def prepared(small_learner, random_batch):
    """Has learned a task of several batches, so that a second one has something to choose from."""

    def learner(**options) -> MIR:
        made = small_learner("mir", **({"lr": 0.1} | options))
        for seed in range(3):
            made.observe(random_batch(seed))
        return made

    return learner


def plain_loss(learner: MIR, logits: Tensor, label: int, task: int) -> float:
    """Cross-entropy of one example over the classes of its task."""
    classes = learner.spec.class_mask[task].nonzero().flatten().tolist()
    return F.cross_entropy(logits[classes][None], torch.tensor([classes.index(label)])).item()


def rises_by_hand(learner: MIR, batch: Batch, drawn: Batch) -> list[float]:
    """A copy takes the step with an optimizer of its own; its statistics are then put back."""
    stepped = copy.deepcopy(learner)
    rows = batch.labels != UNLABELLED
    optimizer = torch.optim.SGD(stepped.net.parameters(), lr=learner.config.lr)
    optimizer.zero_grad()
    F.cross_entropy(stepped(batch.images, batch.task_ids)[rows], batch.labels[rows]).backward()
    optimizer.step()
    for moved, kept in zip(stepped.net.buffers(), learner.net.buffers(), strict=True):
        moved.copy_(kept)
    rises = []
    for i, (label, task) in enumerate(zip(drawn.labels.tolist(), drawn.task_ids.tolist(), strict=True)):
        before, after = (each.logits(drawn.images[i : i + 1], None)[0] for each in (learner, stepped))
        rises.append(plain_loss(learner, after, label, task) - plain_loss(learner, before, label, task))
    return rises


def index_in(image: Tensor, images: Tensor) -> int:
    return next(i for i in range(len(images)) if torch.equal(image, images[i]))


@pytest.mark.parametrize("unlabelled", [0, 2])
def test_the_examples_whose_loss_rises_most_are_chosen(unlabelled, prepared, random_batch):
    learner = prepared(candidates=6, replay_size=3)
    batch = random_batch(7, task=1, unlabelled=unlabelled)
    drawn = copy.deepcopy(learner).memory.sample(6, copy.deepcopy(learner).generator, batch)
    assert len({image.numpy().tobytes() for image in drawn.images}) == 6
    rises = rises_by_hand(learner, batch, drawn)
    by_rise = sorted(range(6), key=lambda i: -rises[i])
    assert rises[by_rise[2]] - rises[by_rise[3]] > 1e-5  # no tie decides

    increases = learner.loss_increase(drawn, learner.virtual_step(batch, batch.labels))
    torch.testing.assert_close(increases, torch.tensor(rises), atol=1e-4, rtol=1e-3)
    chosen = learner.replay(batch, batch.labels)
    assert [index_in(image, drawn.images) for image in chosen.images] == by_rise[:3]
    assert torch.equal(chosen.labels, drawn.labels[by_rise[:3]])
    assert torch.equal(chosen.task_ids, drawn.task_ids[by_rise[:3]])


@pytest.mark.parametrize("bf16", [False, True])
def test_the_virtual_step_changes_only_the_generator(bf16, prepared, random_batch, state_of, differing):
    learner, batch = prepared(), random_batch(7, task=1)
    drawing, before = copy.deepcopy(learner), state_of(learner)
    grads = [None if weight.grad is None else weight.grad.clone() for weight in learner.parameters()]
    with torch.autocast("cpu", torch.bfloat16, bf16, cache_enabled=False):
        learner.replay(batch, batch.labels)
    drawing.memory.sample(learner.config.candidates, drawing.generator, batch)
    assert differing(before, state_of(learner)) == {"_extra_state"}
    assert not differing(state_of(drawing), state_of(learner))
    assert {part.training for part in learner.modules()} == {True}
    for grad, weight in zip(grads, learner.parameters(), strict=True):
        assert (grad is None and weight.grad is None) or torch.equal(grad, weight.grad)


def test_placeholders_are_neither_scored_nor_learned(small_learner, random_batch):
    learner, batch = small_learner("mir"), random_batch(0)
    drawn = learner.memory.sample(6, copy.deepcopy(learner).generator, batch)
    assert not drawn.stored.any()
    rise = learner.loss_increase(drawn, learner.virtual_step(batch, batch.labels))
    assert (rise == 0).all()
    assert learner.observe(batch)["replay"] == 0


def test_a_small_memory_is_replayed_evenly(small_learner, random_batch):
    """Three are stored and six drawn: each is in the replay of five once before one is there twice."""
    learner = small_learner("mir", candidates=6, replay_size=5)
    learner.observe(random_batch(0, size=3))
    chosen = learner.replay(random_batch(7, task=1), random_batch(7, task=1).labels)
    assert len({image.numpy().tobytes() for image in chosen.images[:3]}) == 3
    assert torch.equal(chosen.images[3:], chosen.images[:2])


def test_highest_ranks_by_repetition_then_by_score():
    scores, repetition = torch.tensor([1.0, 5.0, 2.0, 5.0, 1.0, 2.0]), torch.tensor([0, 0, 0, 1, 1, 1])
    assert highest(scores, repetition, 5).tolist() == [1, 2, 0, 3, 5]


def test_fewer_candidates_than_are_replayed_are_refused():
    with pytest.raises(ValueError, match=r"^candidates: 9 .*10"):
        MIR.Config(candidates=9)
