"""SimCLR against the paper's equation 1 in numpy, and by what is known of it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dualnet.objectives.simclr import TEMPERATURE, Config, SimCLR, nt_xent_loss


def embeddings(num: int, features: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(num, features, generator=generator, dtype=torch.float64)
    return tuple(shared + torch.randn(shared.shape, generator=generator, dtype=torch.float64) for _ in range(2))


def equation_1(z_a: np.ndarray, z_b: np.ndarray, temperature: float) -> float:
    """The mean of l(i, j) over both orders of every pair, anchor by anchor."""
    num, z = len(z_a), np.concatenate([z_a, z_b])

    def exp_similarity(i: int, k: int) -> float:
        return math.exp(z[i] @ z[k] / math.sqrt(z[i] @ z[i]) / math.sqrt(z[k] @ z[k]) / temperature)

    def anchor(i: int, j: int) -> float:
        return -math.log(exp_similarity(i, j) / sum(exp_similarity(i, k) for k in range(2 * num) if k != i))

    return sum(anchor(i, num + i) + anchor(num + i, i) for i in range(num)) / (2 * num)


@given(st.integers(1, 9), st.integers(1, 8), st.integers(0, 999), st.sampled_from([TEMPERATURE, 0.1]))
def test_simclr_against_numpy(num, features, seed, temperature):
    z_a, z_b = embeddings(num, features, seed)
    expected = equation_1(z_a.numpy(), z_b.numpy(), temperature)
    assert nt_xent_loss(z_a, z_b, temperature).item() == pytest.approx(expected, rel=1e-6, abs=1e-8)


@given(st.integers(2, 9), st.integers(1, 8), st.integers(0, 999))
def test_the_form_of_dualnet_s_authors(num, features, seed):
    z_a, z_b = embeddings(num, features, seed)
    z = np.concatenate([(each - each.mean(axis=0)) / each.std(axis=0, ddof=1) for each in (z_a.numpy(), z_b.numpy())])
    terms = [
        -math.log(
            math.exp(z[i] @ z[(i + num) % (2 * num)] / 100) / sum(math.exp(z[i] @ z[k] / 100) for k in range(2 * num))
        )
        for i in range(2 * num)
    ]
    objective = SimCLR(features, None, Config(similarity="standardised", temperature=100.0))
    assert objective.loss(z_a, z_b).item() == pytest.approx(np.mean(terms), rel=1e-8)


def test_the_temperature_is_a_half():
    z_a, z_b = embeddings(6, 4, 0)
    assert torch.equal(nt_xent_loss(z_a, z_b), nt_xent_loss(z_a, z_b, 0.5))


@given(st.integers(0, 999), st.permutations(range(7)))
def test_order_and_length_of_the_embeddings_and_order_of_the_views_do_not_matter(seed, order):
    z_a, z_b = embeddings(7, 5, seed)
    loss = nt_xent_loss(z_a, z_b)
    torch.testing.assert_close(nt_xent_loss(z_a[order], z_b[order]), loss)
    torch.testing.assert_close(nt_xent_loss(z_b, z_a), loss)
    torch.testing.assert_close(nt_xent_loss(3 * z_a, 0.5 * z_b), loss)


@pytest.mark.parametrize("num", [2, 5])
def test_identical_views_of_orthogonal_embeddings_have_a_known_loss(num):
    z = 3 * torch.eye(num, 6)
    expected = -math.log(math.exp(2) / (math.exp(2) + 2 * num - 2))  # one neighbour at cosine 1, all others at 0
    assert nt_xent_loss(z, z).item() == pytest.approx(expected, rel=1e-6)


def test_equal_embeddings_have_the_loss_of_chance():
    z = torch.ones(4, 6)
    assert nt_xent_loss(z, z).item() == pytest.approx(math.log(7), rel=1e-6)
