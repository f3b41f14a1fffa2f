"""The option ``--size``: one size, a list or a range."""

from collections.abc import Callable
from typing import Any

import click

from gradweave.cli.options import SizesType, SizeType

RANGE = "A list (1MB,8MB) or a range (1MB..64MB, doubling; 1KB..1GB*10) makes a table."


def size_option(
    meaning: str, default: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds ``--size``, one size; the command gets `gradient_bytes`, in bytes.

    Args:
        meaning: of the size, a sentence of the help text.
        default: the size if none is given.
    """
    return click.option(
        *("--size", "gradient_bytes"),
        type=SizeType(),
        default=default,
        show_default=default is not None,
        help=meaning,
    )


def sizes_option(
    default: str, meaning: str, least: int = 1, more: str = RANGE
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds ``--size``, one size or several; the command gets `gradient_bytes`, a tuple in bytes.

    Args:
        default: sizes if none are given.
        meaning: of the sizes, a sentence of the help text.
        least: smallest size accepted, in bytes.
        more: a sentence on several sizes.
    """
    return click.option(
        *("--size", "gradient_bytes"),
        type=SizesType(least=least),
        default=default,
        show_default=True,
        help=f"{meaning} {more}",
    )
