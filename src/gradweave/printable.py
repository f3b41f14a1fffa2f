"""Text made safe to print: names come from files, and files from anyone."""

MOST_IN_LINE = 1_000
"""Maximum length of a message; longer messages, which quote a long name, keep both ends."""


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

    Messages longer than `MOST_IN_LINE` lose their middle, since the fault is named at either end.

    >>> in_one_line("no such file:\n  \x1b[31m")
    'no such file: \\x1b[31m'
    >>> len(in_one_line("a" * 5000 + ": no such file")), in_one_line("a" * 5000 + ": no")[-5:]
    (1000, 'a: no')
    """
    line = text if text.isprintable() else printable(" ".join(text.split()))
    if len(line) <= MOST_IN_LINE:
        return line
    half = (MOST_IN_LINE - 3) // 2
    return f"{line[: MOST_IN_LINE - 3 - half]} … {line[-half:]}"
