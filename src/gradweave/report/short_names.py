"""Short names of nodes for narrow places: in a server's symbol, next to a table."""

from gradweave.topology.topology import Topology

ROOM = 6
"""Maximum number of letters in a name."""


def short_names(topology: Topology) -> list[str]:
    """Each node's name, or the part that distinguishes it from others of its kind.

    Args:
        topology: the network.

    Returns:
        [V] for each node its `Topology.id_name` if that is short; otherwise ``…`` and the part
        after the common beginning of all servers' (or all switches') names, or the end of that
        part; if that is not unique, ``#`` and the id.

    >>> import dataclasses, gradweave as gw
    >>> labels = ("node-a08", "node-a09", "node-b10")
    >>> short_names(dataclasses.replace(gw.topology.ring(3), labels=labels))
    ['…a08', '…a09', '…b10']
    """
    result = [""] * topology.num_nodes
    for mine in (topology.servers.tolist(), topology.switches.tolist()):
        names = [topology.id_name(node) for node in mine]
        ends = [name[_shared(names) :] for name in names]
        if len(set(name[1 - ROOM :] for name in ends)) == len(ends):
            ends = [name[1 - ROOM :] for name in ends]
        for node, name, end in zip(mine, names, ends, strict=True):
            short = name if len(name) <= ROOM else f"…{end}"
            result[node] = short if len(short) <= ROOM else f"#{node}"
    return result


def _shared(names: list[str]) -> int:
    """Number of letters in the common beginning of names, up to the start of a word or number."""
    first, last = min(names, default=""), max(names, default="")
    equal = (a == b for a, b in zip(first, last, strict=False))
    shared = next((place for place, same in enumerate(equal) if not same), 0)
    while shared and first[shared - 1].isalnum():
        shared -= 1
    return shared
