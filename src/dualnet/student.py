"""Student's t with any number of degrees of freedom: how likely a value is, and which value is so likely."""

from __future__ import annotations

import math


def two_sided_p(t: float, freedom: float) -> float:
    """P(|T| >= |t|) for Student's t with any number of degrees of freedom.

    >>> round(two_sided_p(2.776445, 4), 4)
    0.05
    """
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def two_sided_t(p: float, freedom: float) -> float:
    """The t with P(|T| >= t) = p, by halving.

    >>> round(two_sided_t(0.05, 4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > p else (low, middle)
    return high


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), regularised: the continued fraction of Abramowitz and Stegun 26.5.8, on the side where it is quick."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / (a * continued_fraction(x, a, b))


def continued_fraction(x: float, a: float, b: float) -> float:
    """1 + d_1 / (1 + d_2 / (1 + ...)), from the inside; the terms beyond the last one count for nothing."""
    value = 1.0
    for number in range(120, 0, -1):
        m = number // 2
        if number % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + term / value
    return value
