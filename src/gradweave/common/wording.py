"""Counts and lists in messages."""

from collections.abc import Sequence


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    Args:
        count: the number.
        noun: singular.
        plural: plural; the singular with an s if not given.

    >>> counted(1, "round"), counted(2048, "transfer"), counted(0, "switch", "switches")
    ('1 round', '2,048 transfers', '0 switches')
    """
    return f"{count:,} {noun_of(count, noun, plural)}"


def listed(words: Sequence[str], most: int = 12) -> str:
    """Words as a list in a sentence.

    Args:
        words: at least one.
        most: maximum number of words to name; the rest are counted.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed(["a", "b", "c", "d"], most=2)
    ('a', 'a, b and c', 'a, b and 2 more')
    """
    last = f"{len(words) - most} more" if len(words) > most else words[-1]
    first = words[:most] if len(words) > most else words[:-1]
    return f"{', '.join(first)} and {last}" if first else last


def noun_of(count: int, noun: str, plural: str = "") -> str:
    """The noun without the number; see `counted`.

    >>> noun_of(1, "server"), noun_of(2, "server")
    ('server', 'servers')
    """
    return noun if count == 1 else plural or f"{noun}s"


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or ["no message"])[0]
