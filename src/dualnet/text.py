"""Text from files and errors, made safe for terminals and for messages of one line."""


def one_line(text: object, limit: int = 500) -> str:
    r"""The text without line breaks, cut to a number of characters.

    >>> one_line("a\n  b")
    'a b'
    """
    return " ".join(str(text).split())[:limit]


def printable(text: object) -> str:
    r"""The text with control characters escaped, so that a name can neither move the cursor nor start a new line.

    >>> print(printable("red\x1b[31m\n\u202edoor"))
    red\x1b[31m\n\u202edoor
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
