"""Groups of servers that a network consists of: boxes, racks, pods, found by its links alone."""

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.topology import Topology

THIN = 0.25
"""Maximum ratio of the bandwidth that leaves groups to that of the links inside, for faster links
to define groups. Boxes of GPUs have 0.07 to 0.17 with one card per GPU; groups of four dies in a
box of MI250s, with its faster links, have 0.4. Chosen by hand between these."""
MAX_LEVELS = 8
"""Most levels of groups in groups."""


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """Groups of servers at one level."""

    group: NDArray[np.int64]
    """[V] group of each node; −1 for the switches between groups."""
    count: int
    """Number of groups, at least two."""


@functools.lru_cache(maxsize=4)  # a bound and a strategy ask for the same
def nested_groups(topology: Topology, *, equal: bool = True) -> tuple[Groups, ...]:
    """Groups of servers, and groups of those, found by bandwidths and by nearest switches.

    Starting from single servers, groups are joined to larger groups, as long as these have equally
    many servers if that is required. Servers connected by links of at least some bandwidth form a
    group; the bandwidth is the largest for which the bandwidth that leaves the groups is thin
    compared with that inside (`THIN`). If all links between groups are equally fast, groups on the
    same switches are joined. A switch with at most one neighbour outside a group belongs to the
    group: it is a network card.

    Args:
        topology: the network.
        equal: whether the groups of a level must have equally many servers.

    Returns:
        Levels of groups, the smallest groups first; empty if there are no groups.

    >>> import gradweave as gw
    >>> [level.count for level in nested_groups(gw.topology.gpu_boxes("a100", boxes=4))]
    [4]
    >>> [level.count for level in nested_groups(gw.topology.leaf_spine(4, 2, 6))]
    [4]
    """
    group = np.full(topology.num_nodes, -1)
    group[topology.servers] = np.arange(topology.num_servers)
    levels: list[Groups] = []
    group = _with_cards(topology, group)
    for _ in range(MAX_LEVELS):
        joined = _by_bandwidth(topology, group, equal)
        if joined is None:
            joined = _by_switches(topology, group, equal)
        if joined is None:
            break
        group = _with_cards(topology, joined)
        levels.append(Groups(group, int(group.max()) + 1))
    return tuple(levels)


def members_of_groups(topology: Topology) -> NDArray[np.int32]:
    """[G, n] the servers of each of the smallest groups, by id; single servers without groups.

    Args:
        topology: the network.
    """
    levels = nested_groups(topology)
    if not levels:
        return topology.servers[:, None]
    group = levels[0].group[topology.servers]
    by_group = topology.servers[np.argsort(group, kind="stable")].reshape(levels[0].count, -1)
    return by_group[np.argsort(by_group[:, 0], kind="stable")]


def _with_cards(topology: Topology, group: NDArray[np.int64]) -> NDArray[np.int64]:
    """The groups, extended by switches that connect a group to a single node outside."""
    group = group.copy()
    degree = np.diff(topology.first_link)
    target = topology.target
    for switch in topology.switches[group[topology.switches] < 0].tolist():
        near = group[target[topology.first_link[switch] : topology.first_link[switch + 1]]]
        own = near[near >= 0]
        if len(own) and (own == own[0]).all() and len(own) >= degree[switch] - 1:
            group[switch] = own[0]
    return group


def _by_bandwidth(
    topology: Topology, group: NDArray[np.int64], equal: bool
) -> NDArray[np.int64] | None:
    """The groups joined over their fastest links, or None."""
    outside = _outside(topology, group)
    bandwidth = topology.bandwidth_bytes_per_s
    for least in np.unique(bandwidth[outside])[::-1].tolist():
        joined = _numbered(topology, _components(topology, group, outside & (bandwidth >= least)))
        before = int(group.max()) + 1
        if _are_groups(topology, joined, before, equal) and _are_thin(topology, joined):
            return joined
    return None


def _by_switches(
    topology: Topology, group: NDArray[np.int64], equal: bool
) -> NDArray[np.int64] | None:
    """Groups with the same neighbouring switches, joined together with these switches; or None."""
    outside = _outside(topology, group)
    own, switch = group[topology.source], topology.target
    to_switch = np.flatnonzero(outside & (own >= 0) & (group[switch] < 0))
    beside: dict[int, list[int]] = {}
    for link in to_switch.tolist():
        beside.setdefault(int(own[link]), []).append(int(switch[link]))
    label: dict[tuple[int, ...], int] = {}
    which = np.full(int(group.max()) + 1, -1)
    for one, switches in beside.items():
        which[one] = label.setdefault(tuple(sorted(set(switches))), len(label))
    if (which < 0).any() or len(label) < 2:
        return None
    joined = np.where(group >= 0, which[group], -1)
    shared = [one for switches in label for one in switches]
    for switches, number in label.items():
        for one in switches:
            if shared.count(one) == 1:
                joined[one] = number
    joined = _numbered(topology, joined)
    return joined if _are_groups(topology, joined, len(which), equal) else None


def _outside(topology: Topology, group: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[L] the links that are not within a group."""
    source, target = group[topology.source], group[topology.target]
    return (source < 0) | (source != target)


def _components(
    topology: Topology, group: NDArray[np.int64], joining: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """[V] the components that some links make of groups and single nodes, by their least label."""
    groups = int(group.max()) + 1
    unit = np.where(group >= 0, group, groups + np.arange(topology.num_nodes))
    ends = unit[topology.source[joining]], unit[topology.target[joining]]
    label = np.arange(groups + topology.num_nodes)
    while True:
        lower = label.copy()
        np.minimum.at(lower, ends[0], label[ends[1]])
        np.minimum.at(lower, ends[1], label[ends[0]])
        lower = lower[lower]
        if np.array_equal(lower, label):
            return label[unit]
        label = lower


def _numbered(topology: Topology, label: NDArray[np.int64]) -> NDArray[np.int64]:
    """[V] labels as numbers from 0, in order of the first server; −1 for labels without a server.

    Switches that are in a component without servers are between groups.
    """
    servers = label[topology.servers]
    known, first = np.unique(servers, return_index=True)
    number = np.full(max(int(label.max()), int(known.max())) + 2, -1)
    number[known[np.argsort(first)]] = np.arange(len(known))
    return number[label]


def _are_groups(topology: Topology, joined: NDArray[np.int64], before: int, equal: bool) -> bool:
    """Whether there are two or more groups, fewer than before, and of equally many servers."""
    sizes = np.bincount(joined[topology.servers])
    return 2 <= len(sizes) < before and (not equal or bool((sizes == sizes[0]).all()))


def _are_thin(topology: Topology, joined: NDArray[np.int64]) -> bool:
    """Whether the bandwidth that leaves the groups is small compared with that inside."""
    source, target = joined[topology.source], joined[topology.target]
    bandwidth = topology.bandwidth_bytes_per_s
    leaving = bandwidth[(source >= 0) & (source != target)].sum()
    from_servers = (source == target) & topology.is_server[topology.source] & (source >= 0)
    return bool(leaving <= THIN * bandwidth[from_servers].sum())
