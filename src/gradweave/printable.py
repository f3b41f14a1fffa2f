"""Text as it may be shown: names come from files, and files from anyone."""


def printable(text: str) -> str:
    r"""The text with every character that a terminal might act on written as an escape.

    Those are control characters, line ends, and characters that change the direction of others.

    >>> print(printable("red \x1b[31m, two\nlines"))
    red \x1b[31m, two\nlines
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def in_one_line(text: str) -> str:
    r"""A message in one line: line ends become spaces, other such characters escapes.

    >>> in_one_line("no such file:\n  \x1b[31m")
    'no such file: \\x1b[31m'
    """
    return text if text.isprintable() else printable(" ".join(text.split()))
