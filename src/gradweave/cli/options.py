"""Options that several verbs share, and checks of their values."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypedDict, TypeVar

import click

from gradweave.errors import FileError, SpecError
from gradweave.topology.named_faults import Faults
from gradweave.topology.spec import from_spec as network_from_spec
from gradweave.topology.topology import Topology
from gradweave.topology.units import parse_size, parse_sizes

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."
)


def positive(kind: type[int] | type[float]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A check that an option is a finite number above zero, or not given."""

    def check(_context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is not None and not 0 < value < float("inf"):
            raise click.BadParameter(
                f"expected a {kind.__name__} above 0, got {value}", param=parameter
            )
        return value

    return check


class SizeType(click.ParamType):
    """A size such as 400MB, 1GiB or 4e8, in bytes; see `parse_size`."""

    name = "size"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The size in bytes; numbers pass the same checks."""
        try:
            return self._read(value)
        except SpecError as error:
            self.fail(str(error), param, ctx)

    def _read(self, value: Any) -> Any:
        return parse_size(value, self._least)


class SizesType(SizeType):
    """Sizes and sweeps such as 1MB,4MB or 1MB..64MB, in bytes; see `parse_sizes`."""

    name = "sizes"

    def _read(self, value: Any) -> Any:
        return value if isinstance(value, tuple) else parse_sizes(value, self._least)


seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Make every random choice from this seed.",
)
time_limit_option = click.option(
    "--time-limit",
    type=float,
    callback=positive(float),
    metavar="SECONDS",
    help="End the search after this time.",
)


_FAULT_OPTIONS = (
    click.option(
        "--without-link",
        multiple=True,
        metavar="A-B",
        help="Take away this link, given by its nodes' names or ids; may be repeated.",
    ),
    click.option(
        "--without-server",
        multiple=True,
        metavar="NODE",
        help="Take away this server; may be repeated.",
    ),
    click.option(
        "--slow",
        multiple=True,
        metavar="A-B=FACTOR",
        help="Leave this link a fraction of its bandwidth, as in 0-16=0.5; may be repeated.",
    ),
)


class FaultOptions(TypedDict):
    """Values of the options of `fault_options`."""

    without_link: tuple[str, ...]
    without_server: tuple[str, ...]
    slow: tuple[str, ...]


def fault_options(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Adds the options for a network's faults to a verb; see `FaultOptions`."""
    return with_options(command, _FAULT_OPTIONS)


def with_options(
    command: Callable[Parameters, Result], options: Sequence[Callable[..., Any]]
) -> Callable[Parameters, Result]:
    """Adds click's options to a verb, in their order."""
    return functools.reduce(lambda given, option: option(given), reversed(options), command)


def faults(given: FaultOptions) -> Faults:
    """The faults that the options of `fault_options` name."""
    return Faults(given["without_link"], given["without_server"], given["slow"])


def network_of(spec: str, given: FaultOptions) -> Topology:
    """The network of a specification or file, with its faults applied."""
    return faults(given).apply_to(network_from_spec(spec))


def writable(path: Path | None, *suffixes: str) -> None:
    """Refuses an output that cannot be written, before the work rather than after it.

    Raises:
        FileError: the name ends in none of the suffixes, or its directory does not exist.
    """
    if path is None:
        return
    if suffixes and not path.name.endswith(suffixes):
        raise FileError(f"{path}: expected a name ending in {' or '.join(suffixes)}")
    if path.is_dir():
        raise FileError(f"{path}: is a directory; give the name of a file")
    if not path.parent.is_dir():
        raise FileError(f"{path}: there is no directory {path.parent}; make it first")


def writable_folder(path: Path | None, option: str) -> None:
    """Refuses a folder for results that cannot be made, before the work rather than after it.

    Raises:
        FileError: there is a file of this name.
    """
    if path is not None and path.exists() and not path.is_dir():
        raise FileError(f"{path}: is not a directory; give another name to {option}")
