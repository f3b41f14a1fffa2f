"""Lists of what there is, with what installed packages bring."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gradweave.cli.answers import Answer
from gradweave.cli.console import complain
from gradweave.common import plugins


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line."""

    name: str
    summary: str
    package: str | None = None
    """The package of a plugin; empty for built-in entries."""


def listing(what: str, listed: Iterable[Entry | str]) -> Answer:
    """Entries; plugins that are refused are reported on standard error, one line each.

    Args:
        what: is listed, a key of the JSON object.
        listed: entries, and reasons why plugins are refused.
    """
    entries, refused = [], []
    for one in listed:
        (refused if isinstance(one, str) else entries).append(one)
    for fault in refused:
        complain(fault)
    shown = [dataclasses.asdict(entry) for entry in entries]
    width = max(len(entry.name) for entry in entries)
    lines = (_line(entry, width) for entry in entries)
    return Answer({"what": what, what: shown, "refused": refused}, lines)


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
