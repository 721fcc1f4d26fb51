"""Student's t against sums over its density, and against printed tables."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualnet.ttest import incomplete_beta, two_sided_p, two_sided_t

freedoms = st.floats(1, 60)


def p_by_integration(t: float, freedom: float) -> float:
    """1 - P(|T| < t): the density of Student's t, its variable put to sqrt(f) tan(u), by Simpson's rule."""
    u = np.linspace(0, math.atan(abs(t) / math.sqrt(freedom)), 20_001)
    weights = np.ones_like(u)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    norm = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return 1 - 2 * norm * float((weights * np.cos(u) ** (freedom - 1)).sum() * u[1] / 3)


@given(st.floats(0.01, 50), freedoms)
def test_p_is_the_area_under_the_density(t: float, freedom: float) -> None:
    assert two_sided_p(t, freedom) == pytest.approx(p_by_integration(t, freedom), abs=1e-8)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),  # columns of any printed t table
    [
        (12.706, 1, 0.05),
        (4.303, 2, 0.05),
        (3.182, 3, 0.05),
        (2.776, 4, 0.05),
        (3.747, 4, 0.02),
        (2.015, 5, 0.1),
        (5.408, 7, 0.001),
        (2.262, 9, 0.05),
        (2.228, 10, 0.05),
        (3.169, 10, 0.01),
        (2.042, 30, 0.05),
        (2.750, 30, 0.01),
        (1.980, 120, 0.05),
        (636.619, 1, 0.001),
    ],
)
def test_p_and_t_from_a_table(t: float, freedom: float, p: float) -> None:
    assert two_sided_p(t, freedom) == pytest.approx(p, rel=2e-3)
    assert two_sided_t(p, freedom) == pytest.approx(t, abs=6e-4)


@given(st.floats(0.001, 0.99), freedoms)
def test_t_and_p_undo_each_other(p: float, freedom: float) -> None:
    assert two_sided_p(two_sided_t(p, freedom), freedom) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize(
    ("x", "a", "b", "value"),
    [(0.3, 1, 1, 0.3), (0.3, 2, 1, 0.09), (0.5, 5, 5, 0.5), (0.25, 0.5, 0.5, 1 / 3), (0, 2, 3, 0), (1, 2, 3, 1)],
)
def test_incomplete_beta_where_it_is_known(x: float, a: float, b: float, value: float) -> None:
    assert incomplete_beta(x, a, b) == pytest.approx(value, abs=1e-12)
