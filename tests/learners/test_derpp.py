"""DER++ against its equation by hand: three terms, two draws, and the logits that a memory holds."""

import copy
import functools

import contract
import pytest
import torch
from torch import Tensor

from dualnet.batch import Batch
from dualnet.cost import Cost, counted
from dualnet.image_ops import augmented_input, network_input
from dualnet.learners import DERpp
from dualnet.losses import MASKED, logit_loss

AUGMENTED_CHECKS = [  # of the contract, what the augmentation of the stored logits could break
    "test_a_batch_is_left_as_it_was",
    "test_logits_change_no_state",
    "test_equal_seeds_give_equal_bits_and_other_seeds_do_not",
    "test_a_learner_leaves_the_global_generator_alone",
    "test_stopped_and_resumed_equals_never_stopped",
    "test_partly_labelled_batches",
    "test_images_of_other_sizes",
    "test_observe_reads_nothing_on_the_host",
    "test_no_operation_of_observe_synchronises",
]


def prepared(small_learner, random_batch, **options) -> DERpp:
    """Has learned a task, so that a second one finds something to replay."""
    learner = small_learner("derpp", **options)
    learner.observe(random_batch(0))
    learner.observe(random_batch(1))
    return learner


def classes_of(learner: DERpp, task: int) -> list[int]:
    return [c for c in range(learner.spec.num_classes) if learner.spec.class_mask[task, c]]


def cross_entropy(learner: DERpp, logits: Tensor, batch: Batch) -> Tensor:
    terms = []
    for row, label, task in zip(logits, batch.labels.tolist(), batch.task_ids.tolist(), strict=True):
        exponentials = {c: row[c].exp() for c in classes_of(learner, task)}
        terms.append(-(exponentials[label] / sum(exponentials.values())).log())
    return torch.stack(terms).mean()


def terms_by_hand(learner: DERpp, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """L(batch), the distance to the stored logits, L(replay). Moves the learner's statistics and chance."""
    draws = [learner.memory.sample(learner.config.replay_size, learner.generator, batch) for _ in range(2)]
    assert all(draw.stored.all() and draw.has_logits.all() for draw in draws)
    batches = [batch, *draws]
    pixels = [network_input(each.images, (28, 28)) for each in batches]
    if learner.config.joint_statistics:
        now, dark, past = learner.net(torch.cat(pixels)).split([len(each) for each in pixels])
    else:
        now, dark, past = (learner.net(each) for each in pixels)
    squares = [
        (row[c] - remembered[c]) ** 2
        for row, remembered, task in zip(dark, draws[0].logits, draws[0].task_ids.tolist(), strict=True)
        for c in classes_of(learner, task)
    ]
    return (
        cross_entropy(learner, now, batch),
        torch.stack(squares).mean(),
        cross_entropy(learner, past, draws[1]),
    )


@pytest.mark.parametrize("joint_statistics", [False, True])
@pytest.mark.parametrize("replay_size", [4, 7])  # as many as the batch has: one pass; more: two
def test_one_update_follows_the_equation(joint_statistics, replay_size, small_learner, random_batch):
    options = {
        "replay_size": replay_size,
        "joint_statistics": joint_statistics,
        "logit_weight": 0.7,
        "replay_weight": 0.4,
        "lr": 0.05,
    }
    learner = prepared(small_learner, random_batch, updates=1, **options)
    by_hand, batch = copy.deepcopy(learner), random_batch(2, task=1)
    losses = learner.observe(batch)

    by_hand.memory.add(batch, by_hand.generator, by_hand.logits(batch.images, batch.task_ids))
    now, dark, past = terms_by_hand(by_hand, batch)
    for name, term in (("labels", now), ("logits", dark), ("replay", past)):
        torch.testing.assert_close(losses[name], term.detach(), atol=1e-4, rtol=1e-4)
    assert dark > 1e-4
    weights = [*by_hand.net.parameters()]
    grads = torch.autograd.grad(now + 0.7 * dark + 0.4 * past, weights)
    for weight, grad, learned in zip(weights, grads, learner.net.parameters(), strict=True):
        torch.testing.assert_close(learned, weight - 0.05 * grad, atol=1e-4, rtol=1e-3)
    for moved, learned in zip(by_hand.net.buffers(), learner.net.buffers(), strict=True):
        torch.testing.assert_close(learned, moved, atol=1e-4, rtol=1e-3)
    assert torch.equal(by_hand.generator.get_state(), learner.generator.get_state())


def test_the_memory_holds_the_logits_from_before_the_update(small_learner, random_batch):
    learner = small_learner("derpp")
    batch = random_batch(0, unlabelled=1)
    answers = learner.logits(batch.images, batch.task_ids)
    learner.observe(batch)
    held = learner.memory.filled.nonzero().flatten()
    assert len(held) == 3 and learner.memory.has_logits[held].all()
    for slot in held.tolist():
        (row,) = [i for i in range(4) if torch.equal(batch.images[i], learner.memory.images[slot])]
        assert torch.equal(learner.memory.logits[slot], answers[row])
    assert not torch.equal(learner.logits(batch.images, batch.task_ids), answers)


@pytest.mark.parametrize("ema_rate", [0.0, 0.5])
@pytest.mark.parametrize("augment", ["views", "crop", "resized_crop", "random_crop"])
def test_the_memory_holds_the_logits_of_one_augmentation(augment, ema_rate, small_learner, random_batch):
    """Its random numbers are drawn first, those of the updates after it; the stored images are the plain ones."""
    options = {"augment": augment, "crop_area": (0.3, 0.5), "ema_rate": ema_rate}
    learner = prepared(small_learner, random_batch, stored_logits="augmented", **options)
    before, batch = copy.deepcopy(learner).eval(), random_batch(2, task=1, unlabelled=1)
    pixels = augmented_input(batch.images, (28, 28), augment, before.generator, (0.3, 0.5))
    with torch.no_grad():
        for name, mean in before.ema.means().items() if ema_rate else ():
            before.state_dict()[name].copy_(mean)
        expected, plain = (before.net(each)[:, [2, 3]] for each in (pixels, network_input(batch.images, (28, 28))))
    learner.observe(batch)
    held = learner.memory.filled & (learner.memory.task_ids == 1)
    assert held.sum() == 3
    for slot in held.nonzero().flatten().tolist():
        (row,) = [i for i in range(4) if torch.equal(batch.images[i], learner.memory.images[slot])]
        logits = learner.memory.logits[slot, [2, 3]]
        torch.testing.assert_close(logits, expected[row])
        assert not torch.allclose(logits, plain[row], atol=1e-3)


def test_the_option_changes_nothing_but_the_stored_logits(small_learner, random_batch, state_of, differing):
    """In the first task nothing is replayed: with the numbers for the logits drawn before, all else is the same."""
    plain, augmented = (
        small_learner("derpp", augment="crop", updates=1, stored_logits=which) for which in ("plain", "augmented")
    )
    batch = random_batch(0)
    plain.training_input(batch.images)
    plain.observe(batch)
    augmented.observe(batch)
    assert differing(state_of(plain), state_of(augmented)) == {"memory.logits"}


def test_plain_is_the_default_and_augmented_needs_an_augmentation():
    assert DERpp.Config().stored_logits == "plain"
    for replay in ("same", "crop"):  # the augmentation is that of the batch
        with pytest.raises(ValueError, match=r"^stored_logits: augmented .*set augment as well, or use plain$"):
            DERpp.Config(stored_logits="augmented", augment_replay=replay)


@pytest.mark.parametrize("check", AUGMENTED_CHECKS)
def test_the_contract_holds_with_logits_of_an_augmentation(check, request, small_config, quick_learner):
    options = {"augment": "views", "stored_logits": "augmented"}
    make, config = (functools.partial(given, **options) for given in (quick_learner, small_config))
    contract.holds(check, request, name="derpp", make=make, small_config=config)


def test_in_the_first_task_only_the_batch_counts(small_learner, random_batch):
    """Nothing of an earlier task is stored: the placeholders have neither a label nor logits."""
    losses = small_learner("derpp").observe(random_batch(0))
    assert losses["logits"] == 0 and losses["replay"] == 0 and losses["labels"] > 0


def test_logit_loss_is_the_mean_over_stored_logits_of_the_task():
    logits = torch.tensor([[1.0, 2.0, MASKED], [MASKED, 5.0, 1.0], [0.0, MASKED, MASKED]], requires_grad=True)
    remembered = torch.tensor([[0.0, 4.0, MASKED], [7.0, 7.0, 7.0], [3.0, MASKED, MASKED]])
    loss = logit_loss(logits, remembered, torch.tensor([True, False, True]))
    assert loss.item() == pytest.approx((1 + 4 + 9) / 3)
    loss.backward()
    assert logits.grad.tolist() == [pytest.approx([2 / 3, -4 / 3, 0]), [0, 0, 0], pytest.approx([-2, 0, 0])]
    assert logit_loss(logits, remembered, torch.zeros(3, dtype=torch.bool)) == 0


def test_a_batch_without_labels_needs_no_pass_for_logits(small_learner, random_batch):
    """Nothing of it is stored; its updates are on the batch and on two draws."""
    learner = small_learner("derpp", unlabelled="replay")
    batch, cost, config = random_batch(0), Cost(), learner.config
    learner.observe(batch)
    with counted(learner, cost):
        learner.observe(Batch(batch.images, None, batch.task_ids))
    assert cost.forward_samples == config.updates * (len(batch) + 2 * config.replay_size)
