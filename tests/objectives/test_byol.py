"""BYOL against the paper's equations 1 and 2 in numpy: the loss, and what moves the target."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dualnet.nets import Encoder
from dualnet.objectives.byol import BYOL, byol_loss


def vectors(num: int, features: int, seed: int) -> list[Tensor]:
    """p_a, p_b and the target's z_a, z_b."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(num, features, generator=generator, dtype=torch.float64) for _ in range(4)]


def views() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 3, 28, 28, generator=generator) for _ in range(2)]


def by_hand(p_a: np.ndarray, p_b: np.ndarray, z_a: np.ndarray, z_b: np.ndarray) -> float:
    """2 - 2 cos(p, z), example by example, both ways."""

    def loss(p: np.ndarray, z: np.ndarray) -> float:
        return 2 - 2 * (p @ z) / (np.sqrt((p**2).sum()) * np.sqrt((z**2).sum()))

    return float(np.mean([loss(p_a[i], z_b[i]) + loss(p_b[i], z_a[i]) for i in range(len(p_a))]))


def online(objective: BYOL, encoder: Encoder) -> list[np.ndarray]:
    return [w.detach().numpy().copy() for w in (*encoder.parameters(), *objective.projector.parameters())]


def target(objective: BYOL) -> list[np.ndarray]:
    nets = (objective.target_encoder, objective.target_projector)
    return [weight.detach().numpy().copy() for net in nets for weight in net.parameters()]


@given(st.integers(1, 9), st.integers(2, 8), st.integers(0, 999))
def test_byol_against_numpy(num, features, seed):
    tensors = vectors(num, features, seed)
    loss = byol_loss(*tensors).item()
    assert loss == pytest.approx(by_hand(*(tensor.numpy() for tensor in tensors)), rel=1e-6, abs=1e-9)
    assert 0 <= loss <= 8


def test_only_the_target_gets_no_gradient(spec, random_batch):
    objective, encoder = BYOL(32, spec), Encoder(4)
    objective(encoder, *views(), random_batch()).backward()
    without = {name for name, weight in objective.named_parameters() if weight.grad is None}
    assert without == {name for name, _ in objective.named_parameters() if name.startswith("target_")}


def test_the_target_follows_by_a_hundredth(spec, random_batch):
    objective, encoder = BYOL(32, spec), Encoder(4)
    before, towards = target(objective), online(objective, encoder)
    objective(encoder, *views(), random_batch())
    for now, old, new in zip(target(objective), before, towards, strict=True):
        np.testing.assert_allclose(now, 0.99 * old + 0.01 * new, atol=1e-7)


def test_the_target_has_the_weights_of_any_encoder_and_its_projector(spec):
    for width in (1, 5, 20):
        objective, encoder = BYOL(Encoder(width).channels[-1], spec), Encoder(width)
        shapes = [[weight.shape for weight in weights] for weights in (target(objective), online(objective, encoder))]
        assert shapes[0] == shapes[1]


@pytest.mark.parametrize("statistics", ["interpolate", "keep"])
def test_in_dualnet_the_target_is_moved_by_momentum_only(statistics, small_learner, random_batch):
    """Neither decayed by SGD nor taken part of the way by Look-ahead, which both move the rest."""
    slow = {"rounds": 2, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.1, "beta": 0.3, "statistics": statistics}
    learner = small_learner("dualnet", slow={"objective": "byol", **slow})
    expected = target(learner.objective)

    def follow(module, args) -> None:
        for old, new in zip(expected, online(learner.objective, learner.slow), strict=True):
            old += 0.01 * (new - old)

    learner.objective.register_forward_pre_hook(follow)
    before = target(learner.objective)
    learner.observe(random_batch(0))
    for now, wanted, old in zip(target(learner.objective), expected, before, strict=True):
        np.testing.assert_allclose(now, wanted, atol=1e-6)
        assert not np.array_equal(now, old) or not old.any() or (old == 1).all()  # weights of BatchNorm start alike
