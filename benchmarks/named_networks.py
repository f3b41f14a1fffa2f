"""Unequal networks as operators know them, by name: cases to beat."""

from collections.abc import Callable

from benchmarks.box_networks import boxes
from benchmarks.unequal_networks import GBIT, Joined, network, wide_areas
from gradweave.topology import Topology


def two_sites() -> Topology:
    """Two sites of 16 behind leaf–spines of two spines, joined by two thin links."""
    servers, links = 32, []
    leaves, spines = range(servers, servers + 8), range(servers + 8, servers + 12)
    links += [(server, leaves[server // 4], 0.002, 25 * GBIT) for server in range(servers)]
    links += [
        (leaf, spine, 0.002, 50 * GBIT)
        for site in range(2)
        for leaf in leaves[4 * site : 4 * site + 4]
        for spine in spines[2 * site : 2 * site + 2]
    ]
    links += [(spines[at], spines[at + 2], 1.0, 10 * GBIT) for at in range(2)]
    return network("two sites of 16 behind leaf–spines, two links between", servers, 12, links)


def slow_port() -> Topology:
    """Four racks of six servers, each with a port on both switches of its rack, one port slow."""
    servers, links = 24, list[Joined]()
    for server in range(servers):
        for side in range(2):
            slow = 0.25 if (server, side) == (0, 0) else 1.0
            links.append((server, servers + 2 * (server // 6) + side, 0.002, slow * 25 * GBIT))
    spines = (servers + 8, servers + 9)
    links += [(servers + leaf, spine, 0.002, 50 * GBIT) for leaf in range(8) for spine in spines]
    return network("four dual-homed racks of six, one port at 0.25", servers, 10, links)


def ten_cities_twice() -> Topology:
    """Ten cities, two servers each."""
    return next(one for one in wide_areas() if one.name == "ten cities, two servers each")


NAMED: dict[str, Callable[[], Topology]] = {
    "two sites": two_sites,
    "a slow card": lambda: boxes("A100", 4, "rails", slow=0.5),
    "ten cities twice": ten_cities_twice,
    "a slow port": slow_port,
}
"""By a short name: makes the network."""
