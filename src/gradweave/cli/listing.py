"""Lists of what there is, with what installed packages bring."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from gradweave.cli.console import print_json, print_lines
from gradweave.common import plugins
from gradweave.printable import in_one_line


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line."""

    name: str
    summary: str
    package: str | None = None
    """The package of a plugin; empty for built-in entries."""


def print_listing(what: str, listed: Iterable[Entry | str], as_json: bool) -> None:
    """Prints entries; reports refused plugins on standard error, one line each.

    Args:
        what: is listed, a key of the JSON object.
        listed: entries, and reasons why plugins are refused.
        as_json: prints one JSON object.
    """
    entries, refused = [], []
    for one in listed:
        (refused if isinstance(one, str) else entries).append(one)
    if as_json:
        shown = [dataclasses.asdict(entry) for entry in entries]
        print_json({"what": what, what: shown, "refused": refused})
    else:
        width = max(len(entry.name) for entry in entries)
        print_lines(*(_line(entry, width) for entry in entries))
    for fault in refused:
        click.echo(f"gradweave: {in_one_line(fault)}", err=True)


def _line(entry: Entry, width: int) -> str:
    package = f" ({entry.package})" if entry.package else ""
    return f"{entry.name:{width}}  {entry.summary}{package}"


def summary_of(documented: object) -> str:
    """The first line of its docstring."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def with_plugins(
    kind: plugins.Kind,
    own: Iterable[Entry],
    names: Iterable[str],
    read: Callable[[plugins.Plugin], Any],
    summary: Callable[[plugins.Plugin, Any], tuple[str, str]],
) -> Iterator[Entry | str]:
    """Gradweave's own entries, then those of packages, or why these are refused.

    Args:
        kind: of plugins.
        own: Gradweave's own entries.
        names: which plugins may not have.
        read: imports a plugin.
        summary: name and summary of an imported plugin.
    """
    yield from own
    for plugin, brought in plugins.each(kind, list(names), read):
        if isinstance(brought, Exception):
            yield str(brought)
        else:
            yield Entry(*summary(plugin, brought), plugin.package)
