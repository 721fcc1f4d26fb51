"""DualNet with a closed-form head: the contract, an encoder that is frozen, and one that learns."""

import functools

import contract
import pytest
import torch

from dualnet.nets.closed_form import UNKNOWN

# About losses on labels and weights that labels train; and grey images, of which the slow learner has no views.
NOT_HELD = {
    "test_losses_are_finite_and_detached",
    "test_every_weight_used_for_prediction_is_learned",
    "test_a_repeated_batch_is_learned_but_not_stored_again",
    "test_a_learner_converted_and_back_learns_the_same",
    "test_partly_labelled_batches",
    "test_a_missing_label_is_a_missing_term_of_the_loss",
    "test_grey_images",
}


@pytest.mark.parametrize("check", [check for check in contract.FOR_LEARNERS if check not in NOT_HELD])
def test_the_contract_holds(check, request, quick_learner):
    contract.holds(check, request, name="dualnet", make=functools.partial(quick_learner, head="lda"))


def test_with_a_frozen_encoder_only_sums_and_memory_change(small_learner, stream, state_of, differing):
    learner = small_learner("dualnet", head="lda", encoder={"lr": 0.0}, slow={"rounds": 0})
    before = state_of(learner)
    for batch in stream:
        assert learner.observe(batch) == {}
    changed = {name.partition(".")[0] for name in differing(before, state_of(learner))}
    assert changed == {"fast", "memory"} and learner.optimizers() == {}
    labels = torch.cat([batch.labels for batch in stream])
    assert torch.equal(learner.closed_form.counts.long(), labels[labels >= 0].bincount(minlength=6))


def test_features_that_were_computed_before_are_the_same(small_learner, stream, state_of, differing):
    learner, twin = (small_learner("dualnet", head="lda", encoder={"lr": 0.0}, slow={"rounds": 0}) for _ in range(2))
    for batch in stream:
        learner.observe(batch)
        twin.observe(type(batch)(batch.images, batch.labels, batch.task_ids, features=twin.features(batch.images)))
    assert not differing(state_of(learner), state_of(twin))


def test_the_sums_follow_an_encoder_that_learns(small_learner, stream):
    """At the end of a task they are those of the memory, by the encoder as it is then."""
    learner = small_learner("dualnet", head="lda", memory={"slots_per_class": 50})
    for batch in stream:
        learner.observe(batch)
    head = learner.closed_form
    before = head.sums.clone()
    learner.end_task()
    expected = torch.zeros_like(before)
    for batch in stream:
        labelled = batch.labels >= 0
        expected.index_add_(0, batch.labels[labelled], learner.features(batch.images)[labelled].double())
    assert not torch.allclose(before, expected, rtol=1e-4)
    torch.testing.assert_close(head.sums, expected, rtol=1e-2, atol=1e-2)  # of other batches, in half precision
    assert head.temperature != 1 and head.threshold(0.05) < UNKNOWN, "calibrated by the memory"
