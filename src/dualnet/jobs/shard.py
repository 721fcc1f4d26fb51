"""A part of the runs of a command: several calls at the same time, as of an array job, share a folder."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Shard:
    """Every `count`-th group of runs, from group `number`, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ValueError(f"{text!r} is not a shard such as 3/8, the third of eight")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def has(self, group: int) -> bool:
        """Whether this shard runs a group, counted from 0."""
        return group % self.count == self.number - 1
