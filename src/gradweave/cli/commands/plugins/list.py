"""``gradweave plugins list``: schedulers, environments and algorithms."""

from collections.abc import Callable, Iterator

import click

from gradweave.cli.answers import Answer
from gradweave.cli.groups import command
from gradweave.cli.listing import Entry, listing, summary_of, with_plugins
from gradweave.common import plugins

WHAT = ("schedulers", "environments", "algorithms")


@command("list", examples=["schedulers"])
@click.argument("what", type=click.Choice(WHAT))
def list_(what: str) -> Answer:
    """List schedulers, environments or algorithms.

    Plugins of installed packages are included. Those that cannot be loaded are reported on
    standard error, one line each. 'gradweave topology list' lists the families of networks.
    """
    return listing(what, _EACH[what]())


def _schedulers() -> Iterator[Entry | str]:
    from gradweave.schedulers.spec import OWN_NAMES, STRATEGIES, read_plugin

    own = [Entry(name, summary_of(strategy)) for name, strategy in STRATEGIES.items()]
    return with_plugins(
        plugins.SCHEDULER,
        own,
        OWN_NAMES,
        read_plugin,
        lambda plugin, strategy: (plugin.name, summary_of(strategy)),
    )


def _environments() -> Iterator[Entry | str]:
    from gradweave.marl.games.environments import FAMILIES, ids, read_plugin

    return with_plugins(
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
    zip(WHAT, (_schedulers, _environments, _algorithms), strict=True)
)
