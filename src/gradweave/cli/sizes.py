"""Sizes of the gradient as options: a list, a sweep, or that of nccl-tests."""

import functools
from collections.abc import Callable
from typing import Any

import click

from gradweave.cli.options import SizesType, SizeType
from gradweave.errors import OptionError
from gradweave.topology.units import MAX_SIZES, format_size, sweep

_SWEEP = ("min_bytes", "max_bytes", "factor")


def sizes_option(
    default: str, meaning: str, least: int = 1
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds `--gradient-bytes`, and `-b`, `-e` and `-f`, which make the same sweep as nccl-tests'.

    The verb is given `gradient_bytes`, a tuple of sizes in bytes.

    Args:
        default: sizes where none are given.
        meaning: what the sizes are for, a sentence of the help text.
        least: smallest size accepted, in bytes.
    """
    size = SizeType(least=max(least, 1))  # of 0 there are no larger multiples
    options = (
        click.option(
            "--gradient-bytes",
            type=SizesType(least=least),
            default=default,
            show_default=True,
            help=f"{meaning} A list, or a sweep such as 1MB..64MB (each twice the last), makes a "
            "table.",
        ),
        click.option("-b", "--min-bytes", type=size, help="Begin a sweep at this size, such as 8."),
        click.option(
            "-e", "--max-bytes", type=size, help="End a sweep at or below this size, such as 1G."
        ),
        click.option(
            "-f",
            "--factor",
            type=click.IntRange(2, 1_000_000),
            help="Make each size of the sweep this many times the last.  [default: 2]",
        ),
    )

    def add(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def with_sizes(*arguments: Any, **given: Any) -> None:
            first, last, factor = (given.pop(name) for name in _SWEEP)
            if (first, last, factor) != (None, None, None):
                given["gradient_bytes"] = _sweep(first, last, factor)
            verb(*arguments, **given)

        for option in reversed(options):
            with_sizes = option(with_sizes)
        return with_sizes

    return add


def _sweep(first: int | None, last: int | None, factor: int | None) -> tuple[int, ...]:
    source = click.get_current_context().get_parameter_source("gradient_bytes")
    if source is click.core.ParameterSource.COMMANDLINE:
        raise OptionError("--gradient-bytes: expected either this or a sweep by -b, -e and -f")
    if first is None or last is None:
        missing = "-b, the first size" if first is None else "-e, the last size"
        raise OptionError(f"a sweep by -b, -e and -f: expected {missing}, too")
    if first > last:
        raise OptionError(
            f"-e: expected at least {format_size(first)}, which -b says, got {format_size(last)}"
        )
    sizes = sweep(first, last, factor or 2)
    if len(sizes) > MAX_SIZES:
        raise OptionError(f"-f: expected a factor that makes at most {MAX_SIZES} sizes")
    return tuple(sizes)
