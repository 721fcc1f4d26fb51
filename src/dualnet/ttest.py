"""Student's t distribution, and Welch's t-test from means, standard deviations and sizes of two groups."""

import math
from dataclasses import dataclass

LEVEL = 0.05  # significance level; confidence intervals have 95 %


def two_sided_p(t: float, freedom: float) -> float:
    """P(|T| >= |t|) for Student's t with any number of degrees of freedom.

    >>> round(two_sided_p(2.776445, 4), 4)
    0.05
    """
    from scipy import special  # not at the top: loading it takes 0.1 s, and most commands test nothing

    return float(2 * special.stdtr(freedom, -abs(t)))


def two_sided_t(p: float, freedom: float) -> float:
    """The t with P(|T| >= t) = p.

    >>> round(two_sided_t(0.05, 4), 3)
    2.776
    """
    from scipy import special

    return float(-special.stdtrit(freedom, p / 2))


@dataclass(frozen=True, slots=True)
class Sample:
    """A group of runs, as a paper reports it."""

    mean: float
    std: float | None  # sample standard deviation; None for a single run
    size: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two means: the first minus the second."""

    mean: float
    half_width: float  # of its confidence interval
    freedom: float  # degrees of freedom
    p: float  # two-sided p-value of no difference

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width


def p_text(p: float) -> str:
    """Three decimals, or four where three would hide on which side of LEVEL it is.

    >>> p_text(0.0498), p_text(0.0612)
    ('0.0498', '0.061')
    """
    digits = 4 if round(p, 3) == LEVEL else 3
    return f"{p:.{digits}f}" if p >= 0.001 else "< 0.001"


def welch(ours: Sample, theirs: Sample) -> Difference:
    """The difference of two groups (Welch, 1947). A single run is assumed to have the variance of the other group.

    >>> difference = welch(Sample(57.73, 1.38, 5), Sample(53.43, 1.18, 5))
    >>> [round(x, 4) for x in (difference.mean, difference.half_width, difference.freedom, difference.p)]
    [4.3, 1.8804, 7.8116, 0.0008]
    """
    error, freedom = standard_error(ours, theirs)
    mean = ours.mean - theirs.mean
    if error == 0:
        return Difference(mean, 0.0, freedom, 1.0 if mean == 0 else 0.0)
    return Difference(mean, error * two_sided_t(LEVEL, freedom), freedom, two_sided_p(mean / error, freedom))


def standard_error(a: Sample, b: Sample) -> tuple[float, float]:
    """The standard error of the difference of two means, and its degrees of freedom (Welch-Satterthwaite)."""
    if a.std is None and b.std is None:
        raise ValueError("two single runs cannot be compared; run more seeds")
    if a.std is None or b.std is None:
        known = b if a.std is None else a
        assert known.std is not None
        return known.std * math.sqrt(1 / a.size + 1 / b.size), known.size - 1
    parts = a.std**2 / a.size, b.std**2 / b.size
    total = sum(parts)
    if total == 0:
        return 0.0, a.size + b.size - 2
    shares = parts[0] / total, parts[1] / total  # divided before squaring: squares of tiny numbers underflow
    return math.sqrt(total), 1 / (shares[0] ** 2 / (a.size - 1) + shares[1] ** 2 / (b.size - 1))
