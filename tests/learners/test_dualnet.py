"""DualNet against the paper: equation 7 by hand, Look-ahead on the slow learner, soft labels, what each phase moves."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.batch import Batch
from dualnet.image_ops import network_input
from dualnet.learners import DualNet
from dualnet.learners import learner as learner_module
from dualnet.memory import MemoryConfig
from dualnet.objectives import BarlowTwins
from dualnet.options import build


@pytest.fixture
def make(small_learner):
    """A small DualNet with the options given."""

    def learner(**options) -> DualNet:
        return small_learner("dualnet", **options)

    return learner


@pytest.fixture
def seen_images(monkeypatch):
    """What the slow learner was shown: one entry of images per inner step."""
    shown, forward = [], BarlowTwins.forward

    def recorded(objective, encoder, view_a, view_b, batch):
        shown.append(batch.images)
        assert len(view_a) == len(view_b) == len(batch)
        return forward(objective, encoder, view_a, view_b, batch)

    monkeypatch.setattr(BarlowTwins, "forward", recorded)
    return shown


def prepared(make, random_batch, **options) -> DualNet:
    """Has learned a task and taken its soft labels."""
    learner = make(**options)
    learner.observe(random_batch(0))
    learner.observe(random_batch(1))
    learner.end_task()
    return learner


def one_of(images: Tensor, pool: Tensor) -> Tensor:
    """Which of the images are in the pool, bool [B]."""
    return (images.flatten(1)[:, None] == pool.flatten(1)[None]).all(dim=2).any(dim=1)


# Equation 7


def logits_by_hand(learner: DualNet, images: Tensor) -> Tensor:
    """One batch on its own through both networks, as learning sees it; not masked."""
    pixels = network_input(images, (28, 28))
    return learner.fast(pixels, learner.slow(pixels))


def classes_of(learner: DualNet, task: int) -> list[int]:
    return [c for c in range(learner.spec.num_classes) if learner.spec.class_mask[task, c]]


def equation_7(learner: DualNet, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The three terms, example by example over the classes of its task. Moves the learner's statistics and chance."""
    replay = learner.memory.sample(learner.config.replay_size, learner.generator, batch)
    assert replay.stored.all() and replay.has_logits.all()
    past, tau = replay, learner.config.soft_labels.temperature

    def cross_entropies(logits: Tensor, labels: Tensor, task_ids: Tensor) -> list[Tensor]:
        terms = []
        for row, label, task in zip(logits, labels.tolist(), task_ids.tolist(), strict=True):
            exponentials = {c: row[c].exp() for c in classes_of(learner, task)}
            terms.append(-(exponentials[label] / sum(exponentials.values())).log())
        return terms

    if learner.config.joint_statistics:
        both = logits_by_hand(learner, torch.cat([batch.images, past.images]))
        now_logits, past_logits = both[: len(batch.images)], both[len(batch.images) :]
    else:
        now_logits, past_logits = logits_by_hand(learner, batch.images), logits_by_hand(learner, past.images)
    divergences = []
    for row, remembered, task in zip(past_logits, replay.logits, past.task_ids.tolist(), strict=True):
        chosen = classes_of(learner, task)
        p, q = torch.softmax(remembered[chosen] / tau, dim=0), torch.softmax(row[chosen] / tau, dim=0)
        terms = p * (p.log() - q.log())
        divergences.append(terms.mean() if learner.config.soft_labels.mean == "class" else terms.sum())
    return (
        torch.stack(cross_entropies(now_logits, batch.labels, batch.task_ids)).mean(),
        torch.stack(cross_entropies(past_logits, past.labels, past.task_ids)).mean(),
        torch.stack(divergences).mean(),
    )


@pytest.mark.parametrize("soft_label_mean", ["class", "example"])
@pytest.mark.parametrize("replay_size", [4, 7])  # as many as the batch has: one pass; more: two
@pytest.mark.parametrize("joint_statistics", [False, True])
def test_one_update_follows_equation_7(joint_statistics, soft_label_mean, replay_size, make, random_batch):
    learner = prepared(
        make,
        random_batch,
        slow={"rounds": 0},
        updates=1,
        replay_size=replay_size,
        replay_weight=0.6,
        joint_statistics=joint_statistics,
        soft_labels={"mean": soft_label_mean, "weight": 3.0, "temperature": 1.7},
    )
    by_hand, batch = copy.deepcopy(learner), random_batch(2, task=1)
    losses = learner.observe(batch)

    by_hand.store(batch)
    terms = equation_7(by_hand, batch)
    for key, term in zip(("labels", "replay", "soft_labels"), terms, strict=True):
        torch.testing.assert_close(losses[key], term.detach(), atol=1e-5, rtol=1e-4)
    now, past, soft = terms
    by_hand.zero_grad()
    (now + 0.6 * past + 3.0 * soft).backward()
    for part in ("slow", "fast"):
        after = dict(getattr(learner, part).named_parameters())
        for key, weight in getattr(by_hand, part).named_parameters():
            torch.testing.assert_close(after[key], weight - 0.03 * weight.grad, atol=1e-5, rtol=1e-4)
    for buffer, expected in zip(learner.slow.buffers(), by_hand.slow.buffers(), strict=True):
        torch.testing.assert_close(buffer, expected, atol=1e-5, rtol=1e-4)


def test_in_the_first_task_replay_contributes_nothing(make, random_batch):
    learner = make(slow={"rounds": 0}, updates=1)
    by_hand, batch = copy.deepcopy(learner), random_batch(0)
    losses = learner.observe(batch)
    assert losses["replay"] == 0 and losses["soft_labels"] == 0
    logits = by_hand(batch.images, batch.task_ids)
    F.cross_entropy(logits, batch.labels).backward()
    for weight, start in zip(learner.parameters(), by_hand.parameters(), strict=True):
        if start.grad is not None:
            torch.testing.assert_close(weight, start - 0.03 * start.grad, atol=1e-5, rtol=1e-4)
    for seed in (1, 2, 3):  # the memory fills with examples of this very task
        losses = learner.observe(random_batch(seed))
        assert losses["replay"] == 0 and losses["soft_labels"] == 0


def test_soft_labels_contribute_once_they_are_stored(make, random_batch):
    learner = make(slow={"rounds": 0})
    learner.observe(random_batch(0))
    losses = learner.observe(random_batch(1, task=1))  # nobody said that the task ended
    assert losses["replay"] > 0 and losses["soft_labels"] == 0
    learner.end_task()
    losses = learner.observe(random_batch(2, task=1))
    assert losses["replay"] > 0 and losses["soft_labels"] > 0


def test_updates_are_repeated_with_fresh_draws(make, random_batch, monkeypatch):
    learner = prepared(make, random_batch, slow={"rounds": 0}, updates=3)
    calls, sample = [], learner.memory.sample

    def recorded(*args, **kwargs):
        replay = sample(*args, **kwargs)
        calls.append(replay.images)
        return replay

    monkeypatch.setattr(learner.memory, "sample", recorded)
    learner.observe(random_batch(2, task=1))
    assert len(calls) == 3
    assert not torch.equal(calls[0], calls[1])


# The slow phase


def test_without_slow_rounds_there_is_no_objective(make, stream):
    learner = make(slow={"rounds": 0})
    for batch in stream:
        assert "slow" not in learner.observe(batch)
    assert not hasattr(learner, "objective") and learner.optimizers().keys() == {"fast"}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_labels_only_the_slow_learner_changes(momentum, make, stream, without_labels, state_of, differing):
    learner = make(slow={"momentum": momentum})
    learner.observe(stream[0])
    before = state_of(learner)
    losses = learner.observe(without_labels(stream[1]))
    assert list(losses) == ["slow"] and losses["slow"].isfinite()
    moved = differing(before, state_of(learner))
    assert not [key for key in moved if key.startswith(("fast.", "memory.", "optimizer.fast."))]
    slow_weights = {f"slow.{key}" for key, _ in learner.slow.named_parameters()}
    slow_statistics = {f"slow.{key}" for key, _ in learner.slow.named_buffers()}
    assert slow_weights | slow_statistics <= moved


def test_the_slow_phase_ignores_labels(make, random_batch, state_of, differing):
    """The same images with other labels: the slow phase is the same, bit by bit."""
    learners = [make(), make()]
    batch = random_batch(0)
    other = dataclasses.replace(batch, labels=1 - batch.labels)
    for learner, shown in zip(learners, (batch, other), strict=True):
        learner.store(shown)
        learner.learn_slow(shown)
    assert not differing(*(state_of(learner.slow) for learner in learners))


@pytest.mark.parametrize("statistics", ["interpolate", "keep"])
def test_a_round_interpolates_the_weights(statistics, make, random_batch, state_of):
    """phi + beta (phi_K - phi): the end of the way is where beta = 1 arrives, with the same draws."""
    slow = {"lr": 0.1, "momentum": 0.5, "inner_steps": 3, "statistics": statistics, "beta": 0.0}
    whole, part = (prepared(make, random_batch, slow=slow) for _ in range(2))
    start = state_of(part)
    whole.config, part.config = (
        dataclasses.replace(whole.config, slow=dataclasses.replace(whole.config.slow, beta=beta)) for beta in (1.0, 0.3)
    )
    batch = random_batch(2, task=1)
    losses = [learner.learn_slow(batch)["slow"] for learner in (whole, part)]
    assert torch.equal(*losses)
    end, now = state_of(whole), state_of(part)
    names = [key for key in start if key.startswith(("slow.", "objective."))]
    for key in names:
        torch.testing.assert_close(now[key], start[key] + 0.3 * (end[key] - start[key]), atol=1e-6, rtol=1e-5)
    moved = {key for key in names if not torch.equal(start[key], now[key])}
    is_statistic = {key for key in names if "running" in key}
    assert (is_statistic <= moved) if statistics == "interpolate" else not (is_statistic & moved)
    assert set(names) - is_statistic <= moved


def test_weight_decay_shrinks_the_weights_of_the_slow_phase(make, random_batch, state_of):
    """One SGD step: the gradient is that without decay, and lr * decay of each weight is taken off."""
    slow = {"optimizer": "sgd", "inner_steps": 1, "lr": 0.1}
    plain, decayed = make(slow=slow), make(slow={**slow, "weight_decay": 0.5})
    start = state_of(plain)
    for learner in (plain, decayed):
        learner.learn_slow(random_batch(0))
    names = [f"{part}.{key}" for part in ("slow", "objective") for key, _ in getattr(plain, part).named_parameters()]
    without, decayed_state = state_of(plain), state_of(decayed)
    for key in names:
        torch.testing.assert_close(decayed_state[key], without[key] - 0.1 * 0.5 * start[key], atol=1e-6, rtol=1e-4)
    assert sum((decayed_state[key] - without[key]).abs().max() > 1e-3 for key in names) > 20


def test_kept_statistics_stay_kept_after_moving_to_a_device(make, random_batch, state_of, differing):
    learner = make(slow={"statistics": "keep", "beta": 1.0}).double().float()  # as `.to(device)`: new tensors
    before = state_of(learner)
    learner.learn_slow(random_batch(0))
    assert not [key for key in differing(before, state_of(learner)) if "running" in key]


def test_rounds_and_inner_steps_are_counted(make, random_batch, seen_images):
    learner = prepared(make, random_batch, slow={"rounds": 2, "inner_steps": 3})
    seen_images.clear()
    learner.observe(random_batch(2, task=1))
    assert len(seen_images) == 6
    assert not all(torch.equal(seen_images[0], images) for images in seen_images)  # each step draws anew


def test_the_slow_learner_uses_the_batch_in_the_first_task_and_earlier_tasks_later(make, random_batch, seen_images):
    learner = make(slow={"batch_size": 6})
    first, second = random_batch(0), random_batch(1, task=1)
    learner.observe(first)
    for images in seen_images:
        assert len(images) == 6 and one_of(images, first.images).all()
    assert one_of(first.images, seen_images[0]).all()
    seen_images.clear()
    learner.observe(second)
    for images in seen_images:
        assert len(images) == 6 and one_of(images, first.images).all()
        assert not one_of(images, second.images).any()


@pytest.mark.parametrize("labelled", [True, False])  # without labels, whatever the source
def test_the_slow_learner_can_use_memory_and_batch(labelled, make, random_batch, without_labels, seen_images):
    learner = make(slow={"source": "memory_and_batch" if labelled else "memory", "batch_size": 6})
    first, second = random_batch(0), random_batch(1, task=1)
    learner.observe(first)
    seen_images.clear()
    learner.observe(second if labelled else without_labels(second))
    for images in seen_images:
        assert torch.equal(images[:4], second.images)
        assert len(images) == 10 and one_of(images[4:], first.images).all()


def test_views_have_the_size_of_the_network_input(make, random_batch, spec, monkeypatch):
    large = dataclasses.replace(spec, image_shape=(3, 40, 40), input_size=28)
    learner = make(spec=large)
    shapes, forward = [], learner.objective.forward
    monkeypatch.setattr(learner.objective, "forward", lambda *args: shapes.append(args[1].shape) or forward(*args))
    learner.observe(random_batch(0, spec=large))
    assert set(shapes) == {(6, 3, 28, 28)}


# Soft labels


@pytest.mark.parametrize("answer_size", [3, 250])
def test_at_the_end_of_a_task_every_stored_example_has_logits(answer_size, make, random_batch, monkeypatch):
    monkeypatch.setattr(learner_module, "SOFT_LABEL_BATCH", answer_size)
    learner = make()
    for seed in range(3):
        learner.observe(random_batch(seed))
    memory = learner.memory
    assert memory.filled.sum() == 6 and not memory.has_logits.any()
    learner.end_task()
    assert torch.equal(memory.has_logits, memory.filled)
    slots = memory.filled.nonzero().flatten()
    expected = learner.logits(memory.images[slots], memory.task_ids[slots])
    torch.testing.assert_close(memory.logits[slots], expected, atol=1e-4, rtol=1e-4)
    assert expected.std() > 0


@pytest.mark.parametrize("ema_rate", [0.0, 0.5])
@pytest.mark.parametrize("size", [64, 4])
def test_soft_labels_by_batch_statistics(size, ema_rate, make, random_batch, monkeypatch):
    """They are the logits in training mode, of chunks of nearly equal size."""
    monkeypatch.setattr(learner_module, "NORMALISED_BATCH", size)
    learner = make(soft_labels={"statistics": "batch"}, ema_rate=ema_rate)
    for seed in range(3):
        learner.observe(random_batch(seed))
    memory, other = learner.memory, copy.deepcopy(learner)
    learner.end_task()
    slots = memory.filled.nonzero().flatten()
    assert torch.equal(memory.has_logits, memory.filled) and len(slots) == 6
    if other.ema is not None:
        other.load_state_dict(other.ema.means(), strict=False)
    with torch.no_grad():
        chunks = slots.split(len(slots) if size == 64 else 3)
        expected = torch.cat([other(memory.images[chunk], memory.task_ids[chunk]) for chunk in chunks])
    assert other.training
    torch.testing.assert_close(memory.logits[slots], expected, atol=1e-4, rtol=1e-4)
    assert (memory.logits[slots] - learner.logits(memory.images[slots], memory.task_ids[slots])).abs().max() > 0.01


def test_a_frozen_encoder_keeps_its_statistics_in_soft_labels(make, random_batch):
    learner = make(soft_labels={"statistics": "batch"}, encoder={"lr": 0.0}, slow={"rounds": 0})
    learner.observe(random_batch(0))
    seen = []
    learner.slow.register_forward_hook(lambda slow, *_: seen.append(slow.training))
    learner.end_task()
    assert seen == [False]


def test_soft_labels_in_training_mode_are_of_the_weights_that_learn(make, small_learner):
    for learner in (make, lambda **options: small_learner("ctn", **options)):
        with pytest.raises(ValueError, match=r"^soft_labels\.statistics: train"):
            learner(soft_labels={"statistics": "train"}, ema_rate=0.5)


def test_batch_statistics_need_soft_labels_at_the_end_of_a_task(make):
    with pytest.raises(ValueError, match=r"^soft_labels.statistics: batch needs when: task_end$"):
        make(soft_labels={"statistics": "batch", "when": "insertion"})


def test_soft_labels_of_earlier_tasks_are_kept(make, random_batch):
    learner = prepared(make, random_batch)
    memory = learner.memory
    first = memory.filled.nonzero().flatten()
    before = memory.logits[first].clone()
    learner.observe(random_batch(2, task=1))
    learner.end_task()
    assert torch.equal(memory.logits[first], before)
    assert torch.equal(memory.has_logits, memory.filled) and memory.filled.sum() > len(first)


@pytest.mark.parametrize(
    "options", [{}, {"soft_labels": {"statistics": "batch"}}, {"soft_labels": {"statistics": "batch"}, "ema_rate": 0.5}]
)
def test_the_end_of_a_task_changes_nothing_else(options, make, random_batch, state_of, differing):
    learner = make(**options)
    learner.observe(random_batch(0))
    before = state_of(learner)
    learner.end_task()
    assert differing(before, state_of(learner)) == {"memory.logits", "memory.has_logits"}
    before = state_of(learner)
    learner.end_task()
    assert not differing(before, state_of(learner))
    assert learner.training


def test_soft_labels_at_insertion_precede_the_updates(make, random_batch, state_of, differing):
    learner = make(soft_labels={"when": "insertion"})
    for seed in range(2):
        batch = random_batch(seed, task=seed)
        expected = learner.logits(batch.images, batch.task_ids)
        learner.observe(batch)
        memory = learner.memory
        assert torch.equal(memory.has_logits, memory.filled)
        for image, answer in zip(batch.images, expected, strict=True):
            slot = one_of(memory.images, image[None]).nonzero().flatten()
            torch.testing.assert_close(memory.logits[slot], answer[None], atol=1e-4, rtol=1e-4)
    before = state_of(learner)
    learner.end_task()
    assert not differing(before, state_of(learner))
    assert learner.observe(random_batch(2, task=1))["soft_labels"] > 0


# Task-free


@pytest.mark.parametrize("policy", ["ring", "reservoir", "balanced"])
@pytest.mark.parametrize("soft_labels", ["task_end", "insertion"])
def test_task_free_replay_draws_from_all_that_is_stored(policy, soft_labels, make, random_batch, spec):
    free = spec.task_free()
    memory = MemoryConfig(policy=policy, slots_per_class=2)
    learner = make(
        spec=free, memory=memory, soft_labels={"when": soft_labels}, encoder={"name": "own_encoder.ThreeMaps"}
    )
    losses = learner.observe(random_batch(0, spec=free))
    assert losses["replay"] > 0  # the batch itself is in the memory by then
    assert (losses["soft_labels"] != 0) == (soft_labels == "insertion")
    learner.end_task()
    assert torch.equal(learner.memory.has_logits, learner.memory.filled)
    for seed in range(1, 6):
        losses = learner.observe(random_batch(seed, spec=free))
        assert all(loss.isfinite() for loss in losses.values())
    assert losses["soft_labels"] > 0 or soft_labels == "task_end"
    assert learner.memory.filled.sum() == 12


# Options


def test_defaults_are_the_authors(spec):
    config = DualNet.Config()
    expected = {
        "encoder": {"width": 64},
        "adapter_norm": "none",
        "slow": {"rounds": 3, "inner_steps": 2, "beta": 0.05, "lr": 3e-4, "batch_size": 32},
        "lr": 0.03,
        "updates": 2,
        "replay_size": 10,
        "soft_labels": {"weight": 10.0, "mean": "class", "temperature": 2.0, "when": "task_end"},
    }
    assert config == build(DualNet.Config, expected)
    assert config.memory.make(spec).num_slots == 10 * spec.num_classes


@pytest.mark.parametrize("adapter_norm", ["none", "map", "pixel"])
def test_every_adapter_norm_learns(adapter_norm, make, stream):
    learner = make(adapter_norm=adapter_norm)
    for batch in stream:
        assert all(loss.isfinite() for loss in learner.observe(batch).values())
    assert learner.fast.normalise == adapter_norm
