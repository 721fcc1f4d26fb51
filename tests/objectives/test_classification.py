"""Classification against cross-entropy by hand, and what of a batch, its labels and its tasks it looks at."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dualnet.batch import UNLABELLED, Batch
from dualnet.learners import dualnet as dualnet_module
from dualnet.nets import Encoder
from dualnet.objectives.classification import Classification


@pytest.fixture
def pair(spec) -> tuple[Classification, Encoder]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Classification(32, spec), Encoder(4)


@pytest.fixture
def batch(random_batch) -> Batch:
    """Two examples of each of three tasks of two classes."""
    batches = [random_batch(task, task=task, size=2) for task in range(3)]
    return Batch(*(torch.cat([getattr(each, name) for each in batches]) for name in ("images", "labels", "task_ids")))


def views(num: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(num, 3, 28, 28, generator=generator) for _ in range(2)]


def by_hand(objective: Classification, encoder: Encoder, shown: list[Tensor], batch: Batch) -> float:
    """View by view, example by example, over the two classes of its task; those without a label left out."""
    weight, bias = (parameter.detach().tolist() for parameter in objective.head.parameters())
    terms = []
    for view in shown:
        features = encoder(view)[-1].mean(dim=(2, 3)).tolist()
        for feature, label, task in zip(features, batch.labels.tolist(), batch.task_ids.tolist(), strict=True):
            logits = {c: math.fsum(map(math.prod, zip(feature, weight[c], strict=True))) + bias[c] for c in range(6)}
            own = [logits[c] for c in (2 * task, 2 * task + 1)]
            if label != UNLABELLED:
                terms.append(math.log(sum(map(math.exp, own))) - logits[label])
    return sum(terms) / max(1, len(terms))


@pytest.mark.parametrize("unlabelled", [[], [0], [1, 2, 5], [0, 1, 2, 3, 4]])
def test_classification_by_hand(unlabelled, pair, batch):
    labels = batch.labels.clone()
    labels[unlabelled] = UNLABELLED
    batch = replace(batch, labels=labels)
    expected = by_hand(*pair, views(), batch)
    assert pair[0](pair[1], *views(), batch).item() == pytest.approx(expected, rel=1e-4)
    assert expected > 0


def test_gradients_of_the_head_by_hand(pair, batch):
    """Softmax minus label, averaged over both views, and nothing for the classes of other tasks."""
    objective, encoder = pair
    alone = Batch(batch.images[:2], batch.labels[:2], batch.task_ids[:2])
    shown = views(2)
    objective(encoder, *shown, alone).backward()
    expected = torch.zeros(6)
    for view in shown:
        logits = objective.head(encoder(view)[-1].mean(dim=(2, 3)))[:, :2].detach()
        errors = torch.softmax(logits, dim=1) - torch.eye(2)[alone.labels]
        expected[:2] += errors.sum(dim=0) / 4
    torch.testing.assert_close(objective.head.bias.grad, expected, atol=1e-5, rtol=1e-4)
    assert not objective.head.weight.grad[2:].any() and objective.head.weight.grad[:2].any()


def test_without_labels_loss_and_gradient_are_0(pair, batch):
    objective, encoder = pair
    loss = objective(encoder, *views(), replace(batch, labels=torch.full_like(batch.labels, UNLABELLED)))
    loss.backward()
    assert loss == 0
    assert not any(weight.grad.any() for weight in (*encoder.parameters(), *objective.parameters()))


def test_a_task_free_stream_has_one_head_over_all_classes(spec, batch):
    objective, encoder = Classification(32, spec.task_free()), Encoder(4)
    torch.nn.init.zeros_(objective.head.weight)
    torch.nn.init.zeros_(objective.head.bias)
    free = replace(batch, task_ids=torch.zeros_like(batch.task_ids))
    assert objective(encoder, *views(), free).item() == pytest.approx(math.log(6))
    aware, _ = Classification(32, spec), None
    aware.load_state_dict(objective.state_dict())
    assert aware(encoder, *views(), batch).item() == pytest.approx(math.log(2))


# In DualNet


@pytest.fixture
def shown(monkeypatch) -> list[Batch]:
    """What the slow learner looked at: one batch per inner step."""
    seen, forward = [], Classification.forward

    def recorded(self, encoder, view_a, view_b, batch):
        seen.append(batch)
        return forward(self, encoder, view_a, view_b, batch)

    monkeypatch.setattr(Classification, "forward", recorded)
    return seen


def labels_of(images: Tensor, *batches: Batch) -> tuple[list[int], list[int]]:
    """Labels and tasks that these images had when they came."""
    known = {
        image.numpy().tobytes(): (int(label), int(task))
        for batch in batches
        for image, label, task in zip(batch.images, batch.labels, batch.task_ids, strict=True)
    }
    labels, tasks = zip(*(known[image.numpy().tobytes()] for image in images), strict=True)
    return list(labels), list(tasks)


@pytest.mark.parametrize("source", ["memory", "memory_and_batch"])
def test_each_image_is_shown_with_its_own_label_and_task(source, small_learner, random_batch, shown):
    learner = small_learner("dualnet", slow={"objective": "classification", "source": source})
    batches = [random_batch(0), random_batch(1), random_batch(2, task=1), random_batch(3, task=2, unlabelled=1)]
    for batch in batches:
        assert learner.observe(batch)["slow"] > 0
    assert len(shown) == 8
    for batch in shown:
        assert (batch.labels.tolist(), batch.task_ids.tolist()) == labels_of(batch.images, *batches)
        assert len(batch) == 6 + 4 * (source == "memory_and_batch")


def test_in_the_first_task_the_labels_are_those_of_the_batch(small_learner, random_batch, shown):
    learner = small_learner("dualnet", slow={"objective": "classification"})
    batch = random_batch(0, unlabelled=1)
    assert learner.observe(batch)["slow"] > 0
    assert shown[0].labels.tolist() == [*batch.labels.tolist(), *batch.labels[:2].tolist()]


def test_without_labels_only_stored_examples_contribute(small_learner, random_batch, without_labels, shown):
    learner = small_learner("dualnet", slow={"objective": "classification"})
    weights = [weight.clone() for weight in learner.slow.parameters()]
    assert learner.observe(without_labels(random_batch(0)))["slow"] == 0
    assert all(torch.equal(*same) for same in zip(weights, learner.slow.parameters(), strict=True))
    stored = random_batch(1)
    learner.observe(stored)
    shown.clear()
    assert learner.observe(without_labels(random_batch(2, task=1)))["slow"] > 0
    for batch in shown:
        assert batch.labels[:4].tolist() == [UNLABELLED] * 4
        assert batch.labels[4:].tolist() == labels_of(batch.images[4:], stored)[0]


def test_the_slow_learner_learns_the_labels(small_learner, random_batch, monkeypatch):
    """Shown the images themselves in the place of views, it comes to tell them apart."""

    def plain_views(images, size, config, generator, parts):
        return images.float() / 128 - 1, images.float() / 128 - 1

    monkeypatch.setattr(dualnet_module, "two_views", plain_views)
    learner = small_learner(
        "dualnet", slow={"objective": "classification", "optimizer": "sgd", "lr": 0.03, "rounds": 4}
    )
    batch = random_batch(0)
    losses = [learner.learn_slow(batch)["slow"].item() for _ in range(6)]
    assert losses[-1] < 0.2 < losses[0]
