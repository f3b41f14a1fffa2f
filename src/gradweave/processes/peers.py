"""Values written by other processes of a job, in a store that is open to everyone.

A job's store has no passwords: every program that reaches its port can read and write it. So its
values are never assumed to be well-formed.
"""

import json
from typing import Annotated, Any, TypeVar

import msgspec

from gradweave.errors import RunError

MOST_BYTES = 1 << 22
"""Largest value in bytes: 4 MiB, the size of a rank's status with 20,000 connections."""
MOST_RANKS = 1 << 14
"""Largest number of ranks in a job: it bounds loops if the number comes from the job's store."""
MOST_TEXT = 1000
"""Maximum number of characters in a name, a call or a message."""
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]
_Value = TypeVar("_Value")


def peer_value(
    content: bytes | str, kind: type[_Value] | Any, what: str, most_bytes: int = MOST_BYTES
) -> _Value:
    """Parses JSON that a peer has written.

    Args:
        content: the JSON text.
        kind: the expected type with its limits, in the form that `msgspec` accepts; ``dict`` for
            any object, or ``dict | list`` for an array too, whose numbers may be infinite or NaN.
        what: a name for the value, for the message.
        most_bytes: largest size accepted.

    Raises:
        RunError: the content is something else.

    >>> peer_value("[1, 2]", list[int], "ranks")
    [1, 2]
    >>> peer_value("[1, 2", list[int], "ranks")
    Traceback (most recent call last):
    gradweave.errors.RunError: ranks: not what a rank of this job writes: Input data was truncated
    """
    if len(content) > most_bytes:
        size = f"{len(content):,} bytes, expected at most {most_bytes:,}"
        raise RunError(f"{what}: not what a rank of this job writes: {size}")
    try:
        if kind in (dict, dict | list):
            return msgspec.convert(json.loads(content), kind)  # pyright: ignore[reportReturnType]
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RunError(f"{what}: not what a rank of this job writes: {error}") from error
