"""VICReg against the paper's equations 1 to 6 in numpy, and by what is known of its terms."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dualnet.objectives.vicreg import DEFAULTS, Config, covariance_term, variance_term, vicreg_loss


def embeddings(num: int, features: int, seed: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(num, features, generator=generator, dtype=torch.float64)
    noise = [torch.randn(shared.shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    return tuple(scale * (shared + 0.5 * each) for each in noise)


def by_hand(
    z_a: np.ndarray, z_b: np.ndarray, invariance: float, variance: float, covariance: float, std: float
) -> float:
    """Feature by feature, pair by pair."""
    num, features = z_a.shape

    def v(z: np.ndarray) -> float:
        return sum(max(0.0, std - np.sqrt(np.var(z[:, j], ddof=1) + 1e-4)) for j in range(features)) / features

    def c(z: np.ndarray) -> float:
        covariances = np.atleast_2d(np.cov(z, rowvar=False))
        pairs = [(i, j) for i in range(features) for j in range(features) if i != j]
        return sum(covariances[pair] ** 2 for pair in pairs) / features

    s = sum(((z_a[i] - z_b[i]) ** 2).sum() for i in range(num)) / (num * features)
    return float(invariance * s + variance * (v(z_a) + v(z_b)) + covariance * (c(z_a) + c(z_b)))


@given(st.integers(2, 12), st.integers(1, 8), st.integers(0, 999), st.sampled_from([0.1, 1.0, 5.0]))
def test_vicreg_against_numpy(num, features, seed, scale):
    z_a, z_b = embeddings(num, features, seed, scale)
    for options in ((25.0, 25.0, 1.0, 1.0), (3.0, 7.0, 2.0, 0.5)):
        config = Config(DEFAULTS.projector_hidden, *options)
        expected = by_hand(z_a.numpy(), z_b.numpy(), *options)
        assert vicreg_loss(z_a, z_b, config).item() == pytest.approx(expected, rel=1e-6, abs=1e-8)
    assert Config() == Config(256, 25.0, 25.0, 1.0, 1.0)


@given(st.floats(1, 50), st.integers(0, 999))
def test_features_of_sufficient_variance_have_no_loss(std, seed):
    z, _ = embeddings(9, 4, seed)
    assert variance_term(std * (z - z.mean(dim=0)) / z.std(dim=0)) == 0


@pytest.mark.parametrize("std", [0.0, 0.3, 0.9])
def test_the_variance_term_is_the_missing_deviation(std):
    z, _ = embeddings(9, 4, 0)
    z = std * (z - z.mean(dim=0)) / z.std(dim=0)
    assert variance_term(z).item() == pytest.approx(1 - np.sqrt(std**2 + 1e-4))


def test_uncorrelated_features_have_no_covariance_term_and_equal_ones_do():
    hadamard = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    assert covariance_term(5 * hadamard).item() == pytest.approx(0, abs=1e-6)
    twice = hadamard[:, [0, 0]]  # two entries of 4/3 beside the diagonal, by two features
    assert covariance_term(twice).item() == pytest.approx((4 / 3) ** 2, rel=1e-6)


@given(st.integers(0, 999), st.floats(-20, 20), st.permutations(range(8)))
def test_order_of_the_batch_and_a_common_shift_do_not_matter(seed, shift, order):
    z_a, z_b = embeddings(8, 4, seed)
    loss = vicreg_loss(z_a, z_b)
    torch.testing.assert_close(vicreg_loss(z_a[order] + shift, z_b[order] + shift), loss)
    torch.testing.assert_close(vicreg_loss(z_b, z_a), loss)
