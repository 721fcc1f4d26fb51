"""Student's t against an integral of its density; Welch's test by hand, and what must hold for any two samples."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dualnet.ttest import Sample, two_sided_p, two_sided_t, welch

freedoms = st.floats(1, 60)
means = st.floats(-100, 100)
samples = st.builds(Sample, means, st.floats(0.01, 20), st.integers(2, 30))


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


@given(st.floats(0.001, 0.99), freedoms)
def test_t_and_p_undo_each_other(p: float, freedom: float) -> None:
    assert two_sided_p(two_sided_t(p, freedom), freedom) == pytest.approx(p, rel=1e-9)


def test_two_groups_of_numbers() -> None:
    """By hand: means 5 and 8, variances 2.5 and 10, five each: t = -3 / sqrt(2.5), f = 12.5^2 4 / (6.25 + 100)."""
    ours = Sample(float(np.mean([3, 4, 5, 6, 7])), float(np.std([3, 4, 5, 6, 7], ddof=1)), 5)
    theirs = Sample(float(np.mean([4, 6, 8, 10, 12])), float(np.std([4, 6, 8, 10, 12], ddof=1)), 5)
    difference = welch(ours, theirs)
    assert difference.mean == pytest.approx(-3)
    assert difference.freedom == pytest.approx(12.5**2 * 4 / 106.25)
    assert difference.p == pytest.approx(two_sided_p(3 / math.sqrt(2.5), difference.freedom))


@given(samples, samples)
def test_what_holds_for_any_two(a: Sample, b: Sample) -> None:
    difference, reverse = welch(a, b), welch(b, a)
    assert difference.p == pytest.approx(reverse.p) and difference.mean == -reverse.mean
    assert 0 <= difference.p <= 1
    assert min(a.size, b.size) - 1 <= difference.freedom + 1e-9 <= a.size + b.size - 2 + 1e-6
    assume(abs(difference.p - 0.05) > 1e-6)
    includes_zero = abs(difference.mean) <= difference.half_width
    assert includes_zero == (difference.p >= 0.05)


@given(means, st.floats(0.01, 20), st.integers(2, 30))
def test_equal_spreads_and_sizes_are_student_s_test(mean: float, std: float, size: int) -> None:
    assert welch(Sample(mean, std, size), Sample(0, std, size)).freedom == pytest.approx(2 * size - 2)


@given(means, means, st.floats(0.01, 20), st.integers(2, 30))
def test_a_single_run_is_one_more_of_the_others(ours: float, theirs: float, std: float, size: int) -> None:
    difference = welch(Sample(ours, None, 1), Sample(theirs, std, size))
    assert difference.freedom == size - 1
    expected = two_sided_t(0.05, size - 1) * std * math.sqrt(1 + 1 / size)
    assert difference.half_width == pytest.approx(expected)


def test_no_spread_at_all() -> None:
    assert welch(Sample(1, 0, 3), Sample(1, 0, 3)).p == 1
    assert welch(Sample(1, 0, 3), Sample(2, 0, 3)).p == 0
    with pytest.raises(ValueError, match="two single runs cannot be compared"):
        welch(Sample(1, None, 1), Sample(2, None, 1))
