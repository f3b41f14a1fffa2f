"""``gradweave topology list``: the families of networks."""

from collections.abc import Iterator

from gradweave.cli.answers import Answer
from gradweave.cli.groups import command
from gradweave.cli.listing import Entry, listing, with_plugins
from gradweave.common import plugins


@command("list", examples=["--json"])
def list_() -> Answer:
    """List the families of networks.

    Plugins of installed packages are included. Those that cannot be loaded are reported on
    standard error, one line each.
    """
    return listing("topologies", _topologies())


def _topologies() -> Iterator[Entry | str]:
    from gradweave.topology.spec import example_of, own_families, read_plugin

    own = own_families()
    return with_plugins(
        plugins.TOPOLOGY,
        [Entry(example, summary) for example, summary in own.values()],
        own,
        read_plugin,
        lambda plugin, build: example_of(plugin.name, build),
    )
