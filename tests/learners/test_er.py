"""One update of ER and of MIR against plain PyTorch, with separate and joint BatchNorm statistics."""

import copy

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.parametrize("name", ["er", "mir"])
@pytest.mark.parametrize("joint_statistics", [False, True])
@pytest.mark.parametrize("replay_size", [4, 3])  # as many as the batch has: one pass; fewer: two
def test_one_update_learns_the_batch_and_the_replay(name, joint_statistics, replay_size, small_learner, random_batch):
    options = {"lr": 0.1, "updates": 1, "replay_size": replay_size, "replay_weight": 0.6}
    learner = small_learner(name, joint_statistics=joint_statistics, **options)
    for seed in range(3):
        learner.observe(random_batch(seed))
    by_hand, batch = copy.deepcopy(learner), random_batch(7, task=1)
    losses = learner.observe(batch)

    by_hand.memory.add(batch, by_hand.generator)
    past = by_hand.replay(batch, batch.labels)
    if joint_statistics:
        images, task_ids = torch.cat([batch.images, past.images]), torch.cat([batch.task_ids, past.task_ids])
        now_logits, past_logits = by_hand(images, task_ids).split([4, replay_size])
    else:
        now_logits, past_logits = (by_hand(each.images, each.task_ids) for each in (batch, past))
    now, then = F.cross_entropy(now_logits, batch.labels), F.cross_entropy(past_logits, past.labels)
    torch.testing.assert_close(losses["labels"], now.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(losses["replay"], then.detach(), atol=1e-4, rtol=1e-4)
    weights = [*by_hand.net.parameters()]
    grads = torch.autograd.grad(now + 0.6 * then, weights)
    for weight, grad, learned in zip(weights, grads, learner.net.parameters(), strict=True):
        torch.testing.assert_close(learned, weight - 0.1 * grad, atol=1e-4, rtol=1e-3)
    for buffer, expected in zip(learner.net.buffers(), by_hand.net.buffers(), strict=True):
        torch.testing.assert_close(buffer, expected, atol=1e-5, rtol=1e-4)
