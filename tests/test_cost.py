"""The cost of learning, counted by hooks, against numbers worked out by hand from the options."""

import pytest
import torch

from dualnet.cost import Cost, counted
from dualnet.engine import Engine
from dualnet.memory import MemoryConfig
from dualnet.nets import Encoder

BATCH = 5


@pytest.fixture
def cost_of(small_learner, random_batch):
    """cost_of(name, steps, **options): the cost of steps with five labelled examples each."""

    def cost(name: str, steps: int = 1, **options) -> Cost:
        engine = Engine([small_learner(name, **options)], "fp32")
        for seed in range(steps):
            engine.step([random_batch(seed, size=BATCH)])
        return engine.costs[0]

    return cost


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("updates", [1, 2])
def test_finetune_sees_the_batch_in_every_update(steps, updates, cost_of):
    samples = steps * updates * BATCH
    assert cost_of("finetune", steps, updates=updates) == Cost(samples, samples)


@pytest.mark.parametrize("replay_size", [BATCH, 7])  # of the batch's size: one pass for both
@pytest.mark.parametrize("joint", [False, True])
def test_er_sees_batch_and_replay(replay_size, joint, cost_of):
    samples = 3 * 2 * (BATCH + replay_size)
    cost = cost_of("er", 3, updates=2, replay_size=replay_size, joint_statistics=joint)
    assert cost == Cost(samples, samples)


@pytest.mark.parametrize("replay_size", [BATCH, 7])
def test_derpp_answers_what_it_stores_and_draws_twice(replay_size, cost_of):
    learned = 3 * 2 * (BATCH + 2 * replay_size)
    assert cost_of("derpp", 3, updates=2, replay_size=replay_size) == Cost(learned + 3 * BATCH, learned)


def test_mir_steps_virtually_and_looks_at_the_candidates_twice(cost_of):
    virtual, looked_at, learned = BATCH, 2 * 11, BATCH + 4
    cost = cost_of("mir", 3, updates=2, replay_size=4, candidates=11)
    assert cost == Cost(3 * 2 * (virtual + looked_at + learned), 3 * 2 * (virtual + learned))


@pytest.mark.parametrize("rounds", [0, 1, 3])  # n
@pytest.mark.parametrize("inner_steps", [1, 2])  # K
def test_dualnet_sees_two_views_and_learns_fast(rounds, inner_steps, cost_of):
    options = {"slow": {"rounds": rounds, "inner_steps": inner_steps, "batch_size": 6}, "updates": 2, "replay_size": 4}
    samples = rounds * inner_steps * 2 * 6 + 2 * (BATCH + 4)
    assert cost_of("dualnet", **options) == Cost(samples, samples)


def test_dualnet_with_the_batch_among_the_slow_images_and_answers_at_insertion(cost_of):
    slow, fast = 1 * 2 * 2 * (6 + BATCH), 1 * (BATCH + 4)
    slow_options = {"source": "memory_and_batch", "batch_size": 6, "rounds": 1, "inner_steps": 2}
    options = {"slow": slow_options, "soft_labels": {"when": "insertion"}}
    cost = cost_of("dualnet", updates=1, replay_size=4, **options)
    assert cost == Cost(slow + fast + BATCH, slow + fast)


def test_byol_s_target_is_passed_forward_only(cost_of):
    slow, fast = 1 * 1 * 2 * 6, 1 * (BATCH + 4)
    options = {"slow": {"objective": "byol", "batch_size": 6, "rounds": 1, "inner_steps": 1}}
    assert cost_of("dualnet", updates=1, replay_size=4, **options) == Cost(2 * slow + fast, slow + fast)


def test_dualnet_answers_what_is_stored_when_a_task_ends(small_learner, random_batch):
    """Once: what has an answer is not asked again. A ring holds two tasks of two classes, three slots each."""
    memory = MemoryConfig(slots_per_class=3, policy="ring")
    engine = Engine([small_learner("dualnet", slow={"rounds": 0}, updates=1, replay_size=4, memory=memory)], "fp32")
    engine.step([random_batch(0, size=4)])
    assert engine.costs == [Cost(8, 8)]
    engine.end_task()
    assert engine.costs == [Cost(8 + 4, 8)]
    engine.end_task()
    assert engine.costs == [Cost(8 + 4, 8)]


def test_a_batch_without_labels_costs_a_baseline_nothing(small_learner, random_batch, without_labels):
    batch = without_labels(random_batch(size=BATCH))
    engine = Engine([small_learner("er"), small_learner("dualnet", slow={"batch_size": 6, "inner_steps": 1})], "fp32")
    engine.step([batch, batch])
    assert engine.costs == [Cost(), Cost(2 * (6 + BATCH), 2 * (6 + BATCH))]


def test_half_precision_costs_the_same(small_learner, random_batch):
    engine = Engine([small_learner("mir", updates=1, replay_size=4, candidates=6)], "bf16")
    engine.step([random_batch(size=BATCH)])
    assert engine.costs == [Cost(BATCH + 12 + BATCH + 4, BATCH + BATCH + 4)]


def test_a_gradient_that_stops_early_or_is_not_asked_for_does_not_count():
    encoder, images, cost = Encoder(2), torch.zeros(3, 3, 28, 28), Cost()
    with counted(encoder, cost):
        encoder(images)[-1].detach()
        with torch.no_grad():
            encoder(images)
        assert cost == Cost(6, 0)
        encoder.requires_grad_(False)
        out = encoder(images)[-1] * torch.ones((), requires_grad=True)
        out.sum().backward()
        assert cost == Cost(9, 0)
    encoder(images)
    assert cost == Cost(9, 0), "only what happens within the context counts"


def test_counting_leaves_no_hook_behind_and_changes_no_bit(small_learner, random_batch, state_of, differing):
    stepped, plain = small_learner("dualnet"), small_learner("dualnet")
    with counted(stepped, Cost()), pytest.raises(ZeroDivisionError):
        stepped.observe(random_batch())
        raise ZeroDivisionError
    plain.observe(random_batch())
    assert not any(module._forward_hooks for module in stepped.modules())
    assert not differing(state_of(stepped), state_of(plain))
