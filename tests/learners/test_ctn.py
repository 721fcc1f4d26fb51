"""CTN by hand: FiLM, the two levels of an update, and a semantic memory whose examples the base never learns."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.learners import CTN, ctn
from dualnet.memory import MemoryConfig
from dualnet.nets import Classifier, Controller, Encoder, film, pooled


@pytest.fixture
def make(small_learner):
    """A small CTN with the options given, at rates that show."""

    def learner(**options) -> CTN:
        return small_learner("ctn", **({"lr": 0.1, "controller_lr": 0.1} | options))

    return learner


@pytest.fixture
def prepared(make, random_batch):
    """Has learned a task, so that a second one has soft labels to hold on to."""

    def learner(**options) -> CTN:
        made = make(**options)
        for seed in range(3):
            made.observe(random_batch(seed, size=6))
        made.end_task()
        return made

    return learner


# The network


def test_film_against_numpy():
    torch.manual_seed(0)
    base, controller = Classifier(Encoder(4, block_relu=False), 6).eval(), Controller(3, 8, 32)
    task_ids, pixels = torch.tensor([2, 0, 2, 1]), torch.randn(4, 3, 28, 28)
    features = base.features(pixels)
    assert (features < 0).any()  # the map before its ReLU
    h = features.detach().double().numpy()
    table, weight, bias = (
        tensor.detach().double().numpy()
        for tensor in (controller.embedding.weight, controller.film.weight, controller.film.bias)
    )
    both = table[task_ids.numpy()] @ weight.T + bias
    scale, shift = both[:, :32], both[:, 32:]
    scale, shift = (part / np.sqrt((part**2).sum(axis=1, keepdims=True)) for part in (scale, shift))
    adapted = np.maximum(scale[:, :, None, None] * h + shift[:, :, None, None], 0) + np.maximum(h, 0)
    head_weight, head_bias = (tensor.detach().double().numpy() for tensor in (base.head.weight, base.head.bias))
    expected = adapted.mean(axis=(2, 3)) @ head_weight.T + head_bias
    logits = base.head(pooled(film(features, *controller(task_ids)))).detach().numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-4)


def test_the_length_of_scale_and_shift_is_constant_for_the_gradient():
    """d (a . v / |v|) / dv with |v| held fixed is a / |v|; else the part along v would be taken off."""
    torch.manual_seed(0)
    controller, task_ids = Controller(3, 8, 5), torch.tensor([2, 0, 2, 1])
    weights = torch.randn(4, 10)
    (torch.cat(controller(task_ids), dim=1) * weights).sum().backward()
    embedded = controller.embedding.weight.detach().double().numpy()[task_ids.numpy()]
    film, bias = (tensor.detach().double().numpy() for tensor in (controller.film.weight, controller.film.bias))
    both, a = embedded @ film.T + bias, weights.double().numpy()
    lengths = [np.linalg.norm(both[:, part], axis=1, keepdims=True) for part in (slice(0, 5), slice(5, 10))]
    grad = np.concatenate([a[:, :5] / lengths[0], a[:, 5:] / lengths[1]], axis=1)
    np.testing.assert_allclose(controller.film.bias.grad, grad.sum(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(controller.film.weight.grad, grad.T @ embedded, rtol=1e-4, atol=1e-5)


def test_without_a_task_each_class_uses_its_first_task(small_learner, random_batch):
    """Also where two tasks share a class."""
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)
    learner = small_learner("ctn", spec=StreamSpec((3, 28, 28), mask))
    images = random_batch().images
    free = learner.logits(images, None)
    for number, task in enumerate([0, 0, 1, 2]):
        told = learner.logits(images, torch.full((4,), task))
        torch.testing.assert_close(free[:, number], told[:, number])


# Two levels


@pytest.mark.parametrize("over", ["class", "example"])
@pytest.mark.parametrize("joint_statistics", [False, True])
def test_a_step_of_the_base(over, joint_statistics, prepared, random_batch, state_of, differing):
    learner = prepared(soft_labels={"weight": 7.0, "mean": over}, joint_statistics=joint_statistics)
    batch = random_batch(7, task=1)
    by_hand, before = copy.deepcopy(learner), state_of(learner.controller)
    learner.controller.zero_grad()
    losses = learner.update_base(batch, batch.labels)
    assert not differing(before, state_of(learner.controller))
    assert all(weight.grad is None for weight in learner.controller.parameters())

    replay = past = by_hand.memory.sample(4, by_hand.generator, beside=batch)
    assert replay.has_logits.all()
    if joint_statistics:
        images, task_ids = torch.cat([batch.images, past.images]), torch.cat([batch.task_ids, past.task_ids])
        now_logits, past_logits = by_hand(images, task_ids).split([4, 4])
    else:
        now_logits, past_logits = (by_hand(each.images, each.task_ids) for each in (batch, past))
    now, then = F.cross_entropy(now_logits, batch.labels), F.cross_entropy(past_logits, past.labels)
    target, answer = (F.softmax(logits[:, :2] / 5.0, dim=1) for logits in (replay.logits, past_logits))
    soft = (target * (target.log() - answer.log())).sum(dim=1).mean() / (2 if over == "class" else 1)
    for key, expected in {"labels": now, "replay": then, "soft_labels": soft}.items():
        torch.testing.assert_close(losses[key], expected.detach(), atol=1e-4, rtol=1e-3)
    weights = [*by_hand.base.parameters()]
    for weight, grad, learned in zip(
        weights, torch.autograd.grad(now + then + 7 * soft, weights), learner.base.parameters(), strict=True
    ):
        torch.testing.assert_close(learned, weight - 0.1 * grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("batch_pass", "passes_of_the_batch"), [("inner", 3), ("outer", 1)])
def test_passes_of_the_batch(batch_pass, passes_of_the_batch, prepared, random_batch, monkeypatch):
    learner, passed = prepared(batch_pass=batch_pass, inner_steps=3, outer_steps=2), []
    features = learner.base.features
    monkeypatch.setattr(learner.base, "features", lambda *given: passed.append(len(given[0])) or features(*given))
    learner.observe(random_batch(7, task=1, size=6))
    draws_of_4 = 3 + 1  # for the base and the controller
    assert sum(passed) == 2 * (6 * passes_of_the_batch + 4 * draws_of_4)


def test_every_inner_step_combines_first_activations_with_current_weights(prepared, random_batch):
    """By hand for the head's bias, and for the last BatchNorm's, whose gradient also depends on the head's weights."""
    learner, batch = prepared(batch_pass="outer", soft_labels={"weight": 0.0}), random_batch(7, task=1)
    by_hand, head = copy.deepcopy(learner), learner.base.head
    biases = [head.bias, learner.base.encoder.stages[-1][-1].norm2.bias]
    features = copy.deepcopy(learner).base.features(learner.network_input(batch.images)).detach()
    scale, shift = (each.detach()[:, :, None, None] for each in learner.controller(batch.task_ids))
    slope = scale * (scale * features + shift > 0) + (features > 0).float()
    error = F.softmax(learner.task_logits(features, batch.task_ids), dim=1) - F.one_hot(batch.labels, 6)
    error = error.detach() / len(batch)

    now_loss = learner.batch_loss(batch, batch.labels)
    seen = []
    for _ in range(3):
        before = [bias.detach().clone() for bias in biases]
        of_features = ((error @ head.weight.detach())[:, :, None, None] * slope).mean(dim=(2, 3))
        of_batch = [error.sum(dim=0), of_features.sum(dim=0)]
        seen.append(of_batch[1])
        losses = learner.update_base(batch, batch.labels, now_loss)
        assert losses["labels"] == now_loss
        past = by_hand.memory.sample(4, by_hand.generator, beside=batch)
        past_loss = F.cross_entropy(by_hand(past.images, past.task_ids), past.labels)
        weights = [by_hand.base.head.bias, by_hand.base.encoder.stages[-1][-1].norm2.bias]
        for bias, old, now, then in zip(biases, before, of_batch, torch.autograd.grad(past_loss, weights), strict=True):
            torch.testing.assert_close(bias.detach(), old - 0.1 * (now + then), atol=1e-5, rtol=1e-3)
        by_hand.load_state_dict(learner.state_dict())
    assert not torch.allclose(seen[0], seen[2], atol=1e-3), "the head's weights have changed"


def test_the_first_inner_step_is_the_same_with_either_pass(prepared, random_batch, state_of, differing):
    inner, outer = (prepared(batch_pass=batch_pass, inner_steps=1) for batch_pass in ("inner", "outer"))
    for learner in (inner, outer):
        learner.observe(random_batch(7, task=1))
    names = differing(state_of(inner), state_of(outer))
    assert all(torch.allclose(state_of(inner)[name], state_of(outer)[name], atol=1e-6) for name in names)


def test_the_shared_pass_of_the_batch_is_in_float32(prepared, random_batch):
    """bfloat16 would keep copies of the old weights, and the second backward pass would not see the new ones."""
    learner, batch = prepared(batch_pass="outer"), random_batch(7, task=1)
    plain = copy.deepcopy(learner).batch_loss(batch, batch.labels)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(learner.batch_loss(batch, batch.labels), plain)


@pytest.mark.parametrize("largest", [1.0, 1e-3])  # the authors' is 1
def test_a_step_of_the_controller(largest, prepared, random_batch, state_of, differing, monkeypatch):
    assert ctn.CLIP_VALUE == 1.0
    monkeypatch.setattr(ctn, "CLIP_VALUE", largest)
    learner = prepared(outer_steps=4)
    batch = random_batch(7, task=1)
    by_hand, before = copy.deepcopy(learner), state_of(learner.base)
    loss = learner.update_controller(batch)
    moved = differing(before, state_of(learner.base))
    assert all("running" in name for name in moved)  # as in the authors' code: a pass in training mode

    held = by_hand.semantic.sample(4, by_hand.generator, beside=batch)
    expected = F.cross_entropy(by_hand(held.images, held.task_ids), held.labels)
    torch.testing.assert_close(loss, expected.detach(), atol=1e-4, rtol=1e-4)
    weights = [*by_hand.controller.parameters()]
    grads = torch.autograd.grad(expected / 4, weights)
    assert any(grad.abs().max() > 2e-3 for grad in grads)
    for weight, grad, learned in zip(weights, grads, learner.controller.parameters(), strict=True):
        torch.testing.assert_close(learned, weight - 0.1 * grad.clamp(-largest, largest), atol=1e-5, rtol=1e-3)


def test_two_steps_of_the_base_before_each_of_the_controller(make, random_batch, monkeypatch):
    learner, steps = make(inner_steps=2, outer_steps=3), []
    for name in ("update_base", "update_controller"):
        function = getattr(learner, name)
        monkeypatch.setattr(learner, name, lambda *given, f=function, n=name: steps.append(n[7:]) or f(*given))
    assert set(learner.observe(random_batch())) == {"labels", "replay", "soft_labels", "controller"}
    assert steps == ["base", "base", "controller"] * 3


def test_soft_labels_are_logits_at_the_end_of_a_task(prepared):
    learner = prepared()
    memory = learner.memory
    assert (
        CTN.needs_boundaries(learner.config) and torch.equal(memory.has_logits, memory.filled) and memory.filled.any()
    )
    expected = learner.logits(memory.images[memory.filled], memory.task_ids[memory.filled])
    torch.testing.assert_close(memory.logits[memory.filled], expected)


# The semantic memory


def numbered(first: int, count: int, task: int = 0) -> Batch:
    """Images that show their number."""
    numbers = torch.arange(first, first + count, dtype=torch.uint8)
    return Batch(
        numbers.view(-1, 1, 1, 1).expand(-1, 3, 28, 28).contiguous(),
        2 * task + numbers.long() % 2,
        torch.full((count,), task),
    )


def numbers_in(images: torch.Tensor) -> list[int]:
    return images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("sizes", [[10] * 8, [1] * 60, [3, 7, 1, 9, 20, 5], [64, 3, 40]])
def test_one_in_ten_is_set_aside_and_returned_later(sizes, make):
    """Against a list: first in, first out, and what goes out takes the place of what came in."""
    learner, ring, first = make(memory=MemoryConfig(slots_per_class=5)), [], 0
    assert learner.semantic.num_slots == 6  # two per task of ten
    for size in sizes:
        batch, labels = learner.set_aside(numbered(first, size), numbered(first, size).labels)
        taken = [number for number in range(first, first + size) if number % 10 == 0]
        returned, before = [], list(ring)
        ring = (ring + taken)[-2:]
        returned = [number for number in before if number not in ring]
        shown = {number for number, label in zip(numbers_in(batch.images), labels.tolist(), strict=True) if label >= 0}
        assert sorted(numbers_in(learner.semantic.images[learner.semantic.filled])) == ring
        expected = {number for number in range(first, first + size) if number not in ring} | set(returned)
        assert shown == expected
        assert all(
            label % 2 == number % 2
            for number, label in zip(numbers_in(batch.images), labels, strict=True)
            if label != UNLABELLED
        )
        first += size


def test_the_base_never_learns_what_the_semantic_memory_holds(make, monkeypatch):
    learner, now, replayed = make(memory=MemoryConfig(slots_per_class=5, replay="all")), [], []
    update = learner.update_base
    monkeypatch.setattr(learner, "update_base", lambda *given: now.append(given) or update(*given))
    sample = learner.memory.sample
    monkeypatch.setattr(
        learner.memory, "sample", lambda *given, **more: replayed.append(sample(*given, **more)) or replayed[-1]
    )
    for step in range(12):
        task = step // 6
        learner.observe(numbered(10 * step, 10, task))
        held = set(numbers_in(learner.semantic.images[learner.semantic.filled]))
        learned = {
            number
            for batch in [given[0] for given in now] + replayed
            for number, label in zip(numbers_in(batch.images), batch.labels.tolist(), strict=True)
            if label != UNLABELLED
        }
        assert not held & learned
    assert held == {40, 50, 100, 110}
    assert learned == set(range(120)) - held, "and all else is learned"


def test_examples_are_counted_per_task(make):
    learner = make(memory=MemoryConfig(slots_per_class=5))
    first, second = numbered(0, 4, task=0), numbered(4, 4, task=1)
    both = Batch(
        *(torch.cat([getattr(batch, name) for batch in (first, second)]) for name in ("images", "labels", "task_ids"))
    )
    _, labels = learner.set_aside(both, both.labels)
    assert (labels == UNLABELLED).tolist() == [True, False, False, False] * 2
    assert learner.offered.tolist() == [4, 4, 0]


def test_examples_without_a_label_are_never_set_aside(make):
    learner, batch = make(), numbered(0, 4)
    labels = torch.tensor([UNLABELLED, UNLABELLED, 0, 1])
    shown, left = learner.set_aside(batch, labels)
    assert left.tolist() == [UNLABELLED, UNLABELLED, UNLABELLED, 1] and torch.equal(shown.images, batch.images)
    assert numbers_in(learner.semantic.images[learner.semantic.filled]) == [2]


@pytest.mark.parametrize(
    ("share", "slots", "semantic", "episodic"), [(0.2, 25, 10, 40), (0.1, 25, 5, 45), (0.01, 5, 1, 9), (0.99, 5, 9, 1)]
)
def test_both_memories_share_the_slots(share, slots, semantic, episodic, make):
    learner = make(semantic_share=share, memory=MemoryConfig(slots_per_class=slots))
    assert learner.semantic.num_slots == 3 * semantic and learner.memory.num_slots == 3 * episodic
    assert learner.semantic.logits.numel() == 0


# Refusals


def test_a_shared_pass_cannot_have_joint_statistics():
    with pytest.raises(ValueError, match=r"^batch_pass: outer .* joint_statistics: false$"):
        CTN.Config(batch_pass="outer", joint_statistics=True)


def test_one_slot_per_task_is_too_few(small_learner):
    spec = StreamSpec((3, 28, 28), torch.eye(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^memory\.slots_per_class: 1 .* 2 "):
        small_learner("ctn", spec=spec, memory=MemoryConfig(slots_per_class=1))
    of_two_classes = StreamSpec((3, 28, 28), torch.ones(4, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^memory\.slots_per_class: 3 .* 4 "):
        small_learner("ctn", spec=of_two_classes, memory=MemoryConfig(slots_per_class=3))
    small_learner("ctn", spec=of_two_classes, memory=MemoryConfig(slots_per_class=4))
