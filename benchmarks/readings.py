"""The ledger's verdicts with other readings of the published values: `python -m benchmarks.readings`.

Without the rows whose settings are not published.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dualnet.reproduce.ledger import NO_SETTINGS, verdict_of
from dualnet.ttest import Sample, welch

LEDGER = Path(__file__).parent.parent / "results/reproduce/all/ledger.json"


def unscaled(printed: Sample) -> Sample:
    """With the sample standard deviation, if what is printed is 2 std / √runs, with the population's.

    >>> unscaled(Sample(73.2, 0.8, 5)).std
    1.0
    """
    size = printed.size
    std = None if printed.std is None or size == 1 else printed.std * size / (2 * math.sqrt(size - 1))
    return Sample(printed.mean, std, size)


READINGS: dict[str, Callable[[Sample], Sample]] = {
    "a standard deviation, of the authors' number of runs": lambda published: published,
    "2 std / √runs, as the authors' code prints": unscaled,
    "of five runs everywhere, as the paper states": lambda published: Sample(published.mean, published.std, 5),
}


def main() -> int:
    ledger = json.loads(LEDGER.read_text(encoding="utf-8"))
    rows = [row["metrics"]["ACC"] for row in ledger["rows"] if row["verdict"] != NO_SETTINGS]
    pairs = [(Sample(**row["ours"]), Sample(**row["published"])) for row in rows if row["ours"] and row["published"]]
    for title, reading in READINGS.items():
        counts = Counter(verdict_of(welch(ours, reading(published)), ledger["margin"]) for ours, published in pairs)
        print(f"{title}: {', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
