"""``gradweave list``: schedulers, families of networks, environments and algorithms."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from gradweave import plugins
from gradweave.cli.console import print_json, print_lines
from gradweave.cli.options import json_option
from gradweave.printable import in_one_line

WHAT = ("schedulers", "topologies", "environments", "algorithms")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line."""

    name: str
    summary: str
    package: str | None = None
    """That brings it; None where it is Gradweave's own."""


@click.command("list")
@click.argument("what", type=click.Choice(WHAT))
@json_option
def list_(what: str, as_json: bool) -> None:
    """List what there is, one line each, with what installed packages bring.

    Parts of packages that cannot be used are named on standard error, one line each.
    """
    entries, refused = [], []
    for one in _EACH[what]():
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


def _summary(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _with_plugins(
    kind: plugins.Kind,
    own: Iterable[Entry],
    names: Iterable[str],
    read: Callable[[plugins.Plugin], Any],
    summary: Callable[[plugins.Plugin, Any], tuple[str, str]],
) -> Iterator[Entry | str]:
    """Gradweave's own, then those of packages, or why they are refused."""
    yield from own
    for plugin, brought in plugins.each(kind, list(names), read):
        if isinstance(brought, Exception):
            yield str(brought)
        else:
            yield Entry(*summary(plugin, brought), plugin.package)


def _schedulers() -> Iterator[Entry | str]:
    from gradweave.schedulers.spec import STRATEGIES, read_plugin

    own = [Entry(name, _summary(strategy)) for name, strategy in STRATEGIES.items()]
    return _with_plugins(
        plugins.SCHEDULER,
        own,
        STRATEGIES,
        read_plugin,
        lambda plugin, strategy: (plugin.name, _summary(strategy)),
    )


def _topologies() -> Iterator[Entry | str]:
    from gradweave.topology.spec import example_of, own_families, read_plugin

    own = own_families()
    return _with_plugins(
        plugins.TOPOLOGY,
        [Entry(example, summary) for example, summary in own.values()],
        own,
        read_plugin,
        lambda plugin, build: example_of(plugin.name, build),
    )


def _environments() -> Iterator[Entry | str]:
    from gradweave.marl.games.environments import FAMILIES, ids, read_plugin

    return _with_plugins(
        plugins.ENVIRONMENT,
        [Entry(id, family.meaning) for family in FAMILIES.values() for id in family.ids],
        [*ids(), *FAMILIES],
        read_plugin,
        lambda plugin, family: (plugin.name, family.meaning or "a game"),
    )


def _algorithms() -> Iterator[Entry | str]:
    from gradweave.marl.learners.algorithms import ALGORITHMS

    return iter([Entry(name, row.summary) for name, row in ALGORITHMS.items()])


_EACH: dict[str, Callable[[], Iterator[Entry | str]]] = dict(
    zip(WHAT, (_schedulers, _topologies, _environments, _algorithms), strict=True)
)
