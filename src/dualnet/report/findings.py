"""The result of each setting in a sentence, with its uncertainty over seeds or over test images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualnet.metrics import mean_and_spread, sample_of
from dualnet.report.rows import Comparison, ReportRow, differing_sizes
from dualnet.report.stream_facts import chance
from dualnet.ttest import LEVEL, Sample, p_text, welch

MAX_COMPARED = 5  # rows compared with the best one


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a setting: the row with the highest ACC, whether its lead is significant, and a whole sentence."""

    best: ReportRow
    lead: str
    sentence: str


def findings(comparison: Comparison) -> list[Finding]:
    """One for each setting. Offline is not compared: it is not a continual learner."""
    return [finding([row for row in rows if not row.is_offline] or rows) for rows in comparison.settings()]


def sentences(comparison: Comparison) -> list[str]:
    """The sentence of each finding, after the name of its setting if there are several."""
    texts, names = [item.sentence for item in findings(comparison)], comparison.setting_names()
    return texts if len(texts) == 1 else [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]


def finding(rows: Sequence[ReportRow]) -> Finding:
    """Compare the rows with several seeds; if there are fewer than two, all rows without a test."""
    if len(rows) == 1:
        return single_row(rows[0])
    ranked = sorted(((row, sample_of(row.accs)) for row in rows), key=lambda item: -item[1].mean)
    several = [(row, sample) for row, sample in ranked if sample.std is not None]
    if len(several) < 2:
        (first, best), (second, other), *_ = ranked
        lead = "Single seeds do not tell whether its lead is chance: run more of them."
        text = f"{first.label} has the highest ACC, {best.mean - other.mean:.2f} above {second.label}. {lead}"
        return Finding(first, lead, text + sizes_text([first, second]))
    (first, best), *others = several[: MAX_COMPARED + 1]
    behind, close = [], []
    for row, sample in others:
        difference = welch(best, sample)
        behind.append(f"{row.label} is {difference.mean:.2f} below (p {p_text(difference.p)})")
        close += [] if difference.p < LEVEL else [row.label]
    lead = f"Its lead over {_joined(close)} is not significant." if close else "Its lead is significant."
    correction = f", without correction for {len(behind)} comparisons" if len(behind) > 1 else ""
    text = f"{first.label} has the highest ACC. {lead} {', '.join(behind)}, by Welch's t-test over seeds{correction}."
    return Finding(first, lead, text + sizes_text([first, *(row for row, _ in others)]))


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def sizes_text(rows: Sequence[ReportRow]) -> str:
    """A sentence on the sizes in which compared rows differ; empty if there are none."""
    sizes = [field.replace("_", " ") for field in differing_sizes(rows)]
    return f" The rows differ in {' and '.join(sizes)}." if sizes else ""


def significantly_best(samples: Mapping[int, Sample], higher_is_better: bool) -> int | None:
    """The best row with several seeds, if it is significantly better than all others, else None.

    As in `finding`, at least two rows need several seeds.

    >>> significantly_best({0: Sample(60, 2, 3), 1: Sample(64, 3, 3), 2: Sample(30, 2, 3)}, True)
    >>> significantly_best({0: Sample(60, 2, 3), 1: Sample(74, 3, 3), 2: Sample(30, 2, 3)}, True)
    1
    """
    sign = 1 if higher_is_better else -1
    several = [i for i, sample in samples.items() if sample.std is not None]
    if len(several) < 2:
        return None
    best = max(several, key=lambda i: sign * samples[i].mean)
    differences = [welch(samples[best], other) for i, other in samples.items() if i != best]
    return best if all(sign * difference.mean > 0 and difference.p < LEVEL for difference in differences) else None


def single_row(row: ReportRow) -> Finding:
    """ACC of the only row with its interval, over seeds or, for a single seed, over test images."""
    sample, guessing = sample_of(row.accs), chance(row.runs[0])
    low, high, source = interval(row, sample)
    precision = f" (95 % interval {low:.2f} to {high:.2f}, {source})" if source else ""
    lead = ""
    if guessing is not None:
        word = "above" if low > guessing else "below" if high < guessing else "not different from"
        lead = f"That is {word} chance, {guessing:.2f}." if source else f"Chance is {guessing:.2f}."
    return Finding(row, lead, f"{row.label} ends at ACC {sample.mean:.2f}{precision}. {lead}".rstrip())


def interval(row: ReportRow, sample: Sample) -> tuple[float, float, str]:
    """The ends of the 95 % interval of ACC and its basis; NaN and an empty text if it cannot be computed."""
    if sample.size > 1:
        half = mean_and_spread(row.accs, "ci95")[1]
        return sample.mean - half, sample.mean + half, f"over {sample.size} seeds"
    sizes = row.runs[0].stream.get("test_sizes")
    if not isinstance(sizes, list) or not all(isinstance(size, int) for size in sizes) or sum(sizes) < 1:
        return math.nan, math.nan, ""
    low, high = wilson(sample.mean / 100, sum(sizes))
    return 100 * low, 100 * high, f"over its {sum(sizes):,} test images; another seed may differ by more"


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a proportion observed in `count` trials (Wilson, 1927).

    >>> [round(end, 4) for end in wilson(0.9, 100)]
    [0.8256, 0.9448]
    """
    z = 1.96
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return middle - half, middle + half
