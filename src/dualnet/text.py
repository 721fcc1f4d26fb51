"""Text from files and folders, made safe for a terminal and for one line of a message."""


def printable(text: object) -> str:
    r"""The text with control characters escaped, so that a name can neither move the cursor nor begin a new line.

    >>> print(printable("red\x1b[31m\n\u202edoor"))
    red\x1b[31m\n\u202edoor
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
