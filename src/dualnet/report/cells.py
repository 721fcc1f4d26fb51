"""Tables and their cells: a number keeps its value, spread and kind, and becomes text where the table is shown."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dualnet.ttest import p_text

DASH = "—"  # a missing value


@dataclass(frozen=True, slots=True)
class Number:
    """A cell with a number, by default a count; a dash if there is none."""

    value: float | None
    kind: str = "count"  # of FORMATS
    spread: float | None = None  # shown after ±, unless it is NaN: unknown
    note: str = ""  # shown after the number
    is_best: bool = False  # significantly better than all others of its column: bold

    def __str__(self) -> str:
        if not self.is_known:
            return DASH + self.note
        is_known = self.spread is not None and math.isfinite(self.spread)
        spread = f" ± {number_text(self.spread, self.kind).lstrip('+')}" if is_known else ""
        return number_text(self.value, self.kind) + spread + self.note

    @property
    def is_known(self) -> bool:
        return self.value is not None and math.isfinite(self.value)


Cell = str | Number


@dataclass(frozen=True, slots=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]  # a row with an empty first cell belongs to the row above

    @property
    def numeric(self) -> set[int]:
        """The columns with numbers, which are aligned to the right."""
        return {column for row in self.rows for column, cell in enumerate(row) if isinstance(cell, Number)}

    @property
    def is_sortable(self) -> bool:
        return len(self.rows) > 1 and all(row[0] for row in self.rows)

    @property
    def texts(self) -> list[list[str]]:
        return [[str(cell) for cell in row] for row in self.rows]


def number_text(value: float | None, kind: str = "points") -> str:
    """A number of some kind, or a dash if there is none.

    >>> number_text(71.804), number_text(-0.001), number_text(float("nan")), number_text(2000, "count")
    ('71.80', '0.00', '—', '2,000')
    """
    return DASH if value is None or not math.isfinite(value) else FORMATS[kind](value)


def seconds_text(seconds: float) -> str:
    """Seconds, with one decimal below 100.

    >>> seconds_text(9.27), seconds_text(4321.7)
    ('9.3', '4,322')
    """
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:,.0f}"


def samples_text(number: float) -> str:
    """A number of images with the suffix k, M or G if it is large.

    >>> samples_text(1_248_300), samples_text(31_260), samples_text(950)
    ('1.25M', '31.3k', '950')
    """
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * unit:
            return f"{number / unit:#.3g}".rstrip(".") + letter
    return f"{number:.0f}"


def bytes_text(number: float) -> str:
    """Bytes in MiB or GiB.

    >>> bytes_text(3 * 2**30), bytes_text(200 * 2**20)
    ('3.0 GiB', '200 MiB')
    """
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


FORMATS: Mapping[str, Callable[[float], str]] = {
    "points": "{:z.2f}".format,  # an accuracy in percent, or a difference of two
    "difference": "{:+.2f}".format,
    "accuracy": "{:.1f}".format,  # of a class
    "percent": "{:.1f} %".format,
    "share": "{:.0f} %".format,
    "p": p_text,
    "count": "{:,}".format,
    "label": str,  # a number that names something, such as a seed
    "seconds": seconds_text,
    "samples": samples_text,
    "bytes": bytes_text,
}
