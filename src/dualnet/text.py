"""Text for terminals and for messages of one line: that of files and errors made safe, and numbers with their words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def join_lines(text: object, limit: int = 500) -> str:
    r"""The text without line breaks, cut to a number of characters.

    >>> join_lines("a\n  b")
    'a b'
    """
    return " ".join(str(text).split())[:limit]


def escape(text: object) -> str:
    r"""The text with control characters escaped, so that a name can neither move the cursor nor start a new line.

    >>> print(escape("red\x1b[31m\n\u202edoor"))
    red\x1b[31m\n\u202edoor
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def pluralise(number: int, word: str, words: str = "") -> str:
    """The number with its word, singular or plural.

    >>> pluralise(1, "class", "classes"), pluralise(2000, "image")
    ('1 class', '2,000 images')
    """
    return f"{number:,} {word if number == 1 else words or word + 's'}"


def join_first(words: Sequence[str], most: int = 10) -> str:
    """The first words, and the number of the others.

    >>> join_first(["cat", "dog"]), join_first(["cat", "dog", "cow"], 1)
    ('cat, dog', 'cat and 2 more')
    """
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def compact_table(title: str) -> Table:
    """An empty table for a terminal, with one rule below its headings."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.title, table.title_justify = Text(escape(title), style="bold"), "left"
    return table
