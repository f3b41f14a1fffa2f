"""Options that several commands share, and checks of their values."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

import click
from click.core import ParameterSource

from gradweave.cli.console import warn
from gradweave.errors import FileError, OptionError, SpecError
from gradweave.topology.formats.files import parts_of
from gradweave.topology.formats.host_tree import HostLinks
from gradweave.topology.formats.readers import SUFFIXES
from gradweave.topology.named_faults import Faults
from gradweave.topology.spec import from_spec as network_from_spec
from gradweave.topology.topology import Link, Topology
from gradweave.topology.units import ambiguous_bandwidth, parse_bandwidth, parse_size, parse_sizes

FILE = click.Path(path_type=Path)


def option(names: str, meaning: str, type: Any = None, **more: Any) -> Callable[..., Any]:
    """`click.option` in fewer lines.

    Args:
        names: of the option and, behind a space, of its parameter.
        meaning: sentences of the help text.
        type: of the value; ``bool`` for a flag.
        more: other arguments of `click.option`.
    """
    if type is bool:
        more = {"is_flag": True, **more}
    return click.option(*names.split(), type=type, help=meaning, **more)


def grouped(*options: Callable[..., Any]) -> Callable[[Any], Any]:
    """Several options, and rules on them, as one decorator; in their order."""
    return lambda command: functools.reduce(
        lambda given, each: each(given), reversed(options), command
    )


def written_option(
    names: str, meaning: str, suffixes: Sequence[str] = (), **more: Any
) -> Callable[..., Any]:
    """Adds an option for a file to write, which is refused if it cannot be; see `writable`."""

    def check(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
        writable(path, *suffixes)
        return path

    return option(names, meaning, FILE, callback=check, **more)


class Positive(click.types.FloatParamType):
    """A finite number above zero, of seconds unless a metavar says otherwise."""

    def get_metavar(self, *_: Any, **__: Any) -> str:
        """The name of the value in the help."""
        return "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, checked."""
        number = super().convert(value, param, ctx)
        if not 0 < number < float("inf"):
            self.fail(f"expected a float above 0, got {number}", param, ctx)
        return number


SECONDS = Positive()


class SizeType(click.ParamType):
    """A size such as 400MB, 1GiB or 4e8, in bytes; see `parse_size`."""

    name = "size"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The size in bytes; numbers pass the same checks."""
        if self.name == "size" and isinstance(value, str) and ("," in value or ".." in value):
            self.fail(f"expected one size, such as 100MB, got {value!r:.40}", param, ctx)
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


seed_option = option(
    "--seed", "Make every random choice from this seed.", click.IntRange(0, 2**31 - 1), default=0
)
time_limit_option = option("--time-limit", "End the search after this time.", SECONDS)


fault_options = grouped(
    option(
        "--without-link",
        "Remove this link, given by its nodes' names or ids. Repeatable.",
        multiple=True,
        metavar="A-B",
    ),
    option("--without-server", "Remove this server. Repeatable.", multiple=True, metavar="NODE"),
    option(
        "--slow",
        "Reduce this link to a fraction of its bandwidth, as in 0-16=0.5. Repeatable.",
        multiple=True,
        metavar="A-B=FACTOR",
    ),
)
"""The options for a network's faults; see `FaultOptions`."""


class FaultOptions(TypedDict):
    """Values of the options of `fault_options`."""

    without_link: tuple[str, ...]
    without_server: tuple[str, ...]
    slow: tuple[str, ...]


def faults(given: FaultOptions) -> Faults:
    """The faults that the options of `fault_options` name."""
    return Faults(given["without_link"], given["without_server"], given["slow"])


def network_of(spec: str, given: FaultOptions) -> Topology:
    """The network of a specification or file, with its faults applied."""
    return faults(given).apply_to(network_from_spec(spec))


oversubscription_option = option(
    "--oversubscription",
    "Oversubscription of racks, for a list of hosts: with 4, an uplink has a quarter of its "
    "hosts' bandwidth.  [default: 1]",
    float,
)


def host_links(bandwidth: str | None, oversubscription: float | None) -> HostLinks | None:
    """The links that ``--bandwidth`` and ``--oversubscription`` state, if either is given."""
    if bandwidth is None and oversubscription is None:
        return None
    link = Link()
    if bandwidth is not None:
        if doubt := ambiguous_bandwidth(bandwidth):
            warn(f"--bandwidth: {doubt}")
        link = dataclasses.replace(link, bandwidth_bytes_per_s=parse_bandwidth(bandwidth))
    return HostLinks(link, 1.0 if oversubscription is None else oversubscription)


def network_files(text: str, links: HostLinks | None) -> list[str]:
    """The files that an argument names, joined by ``+`` if there are several.

    Args:
        text: the argument.
        links: what options state about the links of files.

    Returns:
        No files if the argument is a specification.

    Raises:
        OptionError: it is a specification, and links are given.
    """
    is_file = Path(text).is_file() or Path(text).suffix.lower() in SUFFIXES
    files = parts_of(text) or ([text] if is_file else [])
    if not files and links is not None:
        raise OptionError("--bandwidth: expected a FILE with it; a specification has its own")
    return files


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


def is_given(*names: str) -> bool:
    """Whether one of these options is on the command line.

    Args:
        names: of the parameters of the command.
    """
    source = click.get_current_context().get_parameter_source
    return any(source(name) is ParameterSource.COMMANDLINE for name in names)


def refuse(names: Sequence[str], expected: str) -> None:
    """Refuses options that are on the command line, for a reason that is no other option.

    Args:
        names: of the parameters of the command.
        expected: the rest of the message, such as "one --size with it".

    Raises:
        OptionError: naming the first of them.
    """
    for parameter in click.get_current_context().command.params:
        if parameter.name in names and is_given(parameter.name):
            raise OptionError(f"{parameter.opts[0]}: expected {expected}")


def together(_context: click.Context, _option: click.Parameter, given: Sequence[str]) -> str | None:
    """The values of a repeatable option as one comma-separated list, or None."""
    return ",".join(given) if given else None


def scheduler_option(meaning: str, default: str | None = None) -> Callable[..., Any]:
    """Adds ``--scheduler``: strategies, comma-separated or by repeating the option.

    Args:
        meaning: of the option, a sentence of the help text.
        default: strategies if none are given.
    """
    given = None if default is None else (default,)
    more: dict[str, Any] = {"multiple": True, "callback": together, "metavar": "SPEC"}
    return option("--scheduler", f"{meaning} Repeatable.", default=given, **more)


RANGE = "A list (1MB,8MB) or a range (1MB..64MB, doubling; 1KB..1GB*10) makes a table."


def size_option(meaning: str, default: str | None = None) -> Callable[..., Any]:
    """Adds ``--size``, one size; the command gets `gradient_bytes`, in bytes."""
    return option("--size gradient_bytes", meaning, SizeType(), default=default)


def sizes_option(
    default: str, meaning: str, least: int = 1, more: str = RANGE
) -> Callable[..., Any]:
    """Adds ``--size``, one size or several; the command gets `gradient_bytes`, a tuple in bytes.

    Args:
        default: sizes if none are given.
        meaning: of the sizes, a sentence of the help text.
        least: smallest size accepted, in bytes.
        more: a sentence on several sizes.
    """
    return option("--size gradient_bytes", f"{meaning} {more}", SizesType(least), default=default)
