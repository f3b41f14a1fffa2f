"""What stands out in a network: links and hosts that differ from most of their kind."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from gradweave.common.wording import counted, listed
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth

_LEAST_SIBLINGS = 3
"""How many alike there must be for another to stand out."""
_MOST_SHOWN = 4

Key = TypeVar("Key", bound=Hashable)


def oddities(topology: Topology, *, speeds: bool = True) -> list[str]:
    """Slow cables and cards, and hosts with fewer links than their siblings, one sentence each.

    Siblings are links of one node to nodes equally far from servers, or hosts; what most of them
    have in common, and at least three, is expected of all. What is the same everywhere, however
    slow, does not stand out. A host is a server or, if labels are such as ``node1/gpu0``, all nodes
    of one prefix.

    Args:
        topology: any network.
        speeds: whether to compare speeds; not where all are assumed.

    >>> import gradweave as gw
    >>> oddities(gw.topology.slowed(gw.topology.star(5), {(0, 5): 0.5}).topology)
    ['link 0→5 has 50 Gbit/s, its 4 siblings at 5 have 100 Gbit/s']
    """
    slow = _slow_links(topology, _levels(topology)) if speeds else []
    return [*slow, *_sparse_hosts(topology)]


def _levels(topology: Topology) -> list[int]:
    """[V] links from each node to the nearest server."""
    level = np.where(topology.is_server, 0, topology.num_nodes)
    while True:
        nearer = level.copy()
        np.minimum.at(nearer, topology.source, level[topology.target] + 1)
        if np.array_equal(nearer, level):
            return level.tolist()
        level = nearer


def _slow_links(topology: Topology, level: Sequence[int]) -> list[str]:
    """Link directions that are slower than most siblings at one end, each link once."""
    siblings: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    ends = zip(topology.source.tolist(), topology.target.tolist(), strict=True)
    speeds = topology.bandwidth_bytes_per_s.tolist()
    for link, (source, target) in enumerate(ends):
        siblings[target, level[source]][link] = speeds[link]
    slow: dict[tuple[int, int], str] = {}
    for (node, _), links in siblings.items():
        for link, expected, alike in _exceptions(links):
            source = int(topology.source[link])
            pair = (min(source, node), max(source, node))
            if speeds[link] < expected and pair not in slow:
                slow[pair] = (
                    f"link {topology.link_name(link)} has {format_bandwidth(speeds[link])}, its "
                    f"{counted(alike, 'sibling')} at {topology.id_name(node)} have "
                    f"{format_bandwidth(expected)}"
                )
    return [*slow.values()]


def _sparse_hosts(topology: Topology) -> list[str]:
    """Hosts with fewer links to other nodes than most, with what they lack if that is one rail."""
    names = topology.labels or tuple(map(str, range(topology.num_nodes)))
    servers = [names[node] for node in topology.servers.tolist()]
    prefixes = {name.partition("/")[0] for name in servers if "/" in name}
    several = len(prefixes) > 1 and all("/" in name for name in servers)
    host = [name.partition("/")[0] if several else name for name in names]
    hosts = prefixes if several else set(servers)
    links = Counter({name: 0 for name in hosts})
    for source, target in zip(topology.source.tolist(), topology.target.tolist(), strict=True):
        if host[source] in hosts and host[target] != host[source]:
            links[host[source]] += 1
    few: dict[tuple[int, float, int], list[str]] = defaultdict(list)
    for name, expected, alike in _exceptions(links):
        if links[name] < expected:
            few[links[name], expected, alike].append(name)
    return [
        f"{listed(sorted(odd), _MOST_SHOWN)} {'has' if len(odd) == 1 else 'have'} "
        f"{counted(has, 'link')}, {alike} other hosts have {expected:g}"
        for (has, expected, alike), odd in few.items()
    ]


def _exceptions(values: Mapping[Key, float]) -> list[tuple[Key, float, int]]:
    """Keys of a value other than the most frequent one, with that and how many have it.

    None if less than three, or no more than half, have it.
    """
    if len(set(values.values())) < 2:
        return []
    [(expected, alike)] = Counter(values.values()).most_common(1)
    if alike < _LEAST_SIBLINGS or 2 * alike <= len(values):
        return []
    return [(key, expected, alike) for key, value in values.items() if value != expected]
