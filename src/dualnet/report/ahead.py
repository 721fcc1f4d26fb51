"""Which row is ahead, and whether the spread over seeds allows to say so."""

from collections.abc import Iterator

from dualnet.metrics import average_accuracy
from dualnet.ttest import LEVEL, Sample, welch

from .rows import Comparison, ReportRow, mean_and_spread

MAX_COMPARED = 5  # rows behind the first one: those that come next


def ahead_notes(comparison: Comparison) -> Iterator[str]:
    """One for each setting. Rows with a single seed have no spread and are left out."""
    settings = comparison.settings()
    for rows in settings:
        samples = {row.label: acc_sample(row) for row in rows if len(row.runs) > 1}
        if len(samples) > 1:
            yield (f"{rows[0].setting_name}: " if len(settings) > 1 else "") + ahead_text(samples)


def acc_sample(row: ReportRow) -> Sample:
    values = [average_accuracy(accuracy) for accuracy in row.accuracies]
    return Sample(*mean_and_spread(values, "std"), len(values))


def ahead_text(samples: dict[str, Sample]) -> str:
    """The row with the highest ACC against those that come next.

    >>> ahead_text({"er": Sample(60, 2, 3), "ours": Sample(64, 3, 3), "none": Sample(30, 2, 3)})
    "ours has the highest ACC; er is 4.00 below (p 0.138: not significant), none is 34.00 below (p < 0.001: ...
    """
    (first, best), *others = sorted(samples.items(), key=lambda item: -item[1].mean)
    behind = [f"{label} is {below_text(best, sample)}" for label, sample in others[:MAX_COMPARED]]
    return f"{first} has the highest ACC; {', '.join(behind)}, by Welch's t-test over seeds."


def below_text(best: Sample, other: Sample) -> str:
    """
    >>> below_text(Sample(64, 3, 3), Sample(60, 2, 3)), below_text(Sample(64, 3, 3), Sample(30, 2, 3))
    ('4.00 below (p 0.138: not significant)', '34.00 below (p < 0.001: significant)')
    """
    difference = welch(best, other)
    verdict = "significant" if difference.p < LEVEL else "not significant"
    return f"{difference.mean:.2f} below (p {difference.p_text}: {verdict})"
