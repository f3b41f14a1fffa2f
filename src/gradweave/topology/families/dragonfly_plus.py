"""Dragonfly+: groups of leaf and spine switches, whose spines are connected to other groups."""

import numpy as np

from gradweave.errors import TopologyError
from gradweave.topology.families.dragonfly import global_link_pairs
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import Link, Topology


def dragonfly_plus(
    groups: int,
    leaves_per_group: int,
    spines_per_group: int,
    servers_per_leaf: int,
    global_links: int = 1,
    *,
    link: Link | None = None,
) -> Topology:
    """Makes a Dragonfly+: groups of leaves, each linked to all spines of its group.

    The s·h global links of a group are divided evenly among the other groups, as in `dragonfly`;
    three links lead from any leaf to any leaf of another group. Parallel links are one link of
    higher capacity. Servers are numbered leaf by leaf, group by group; then come all leaves and all
    spines.

    Args:
        groups: at least 1 and at most s·h + 1.
        leaves_per_group: at least 1.
        spines_per_group: s, at least 1.
        servers_per_leaf: at least 1.
        global_links: h, at least 1: links of each spine to other groups.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    Source: Shpiner et al., "Dragonfly+: low cost topology for scaling datacenters", HiPINEB 2017.

    >>> net = dragonfly_plus(
    ...     5, leaves_per_group=2, spines_per_group=2, servers_per_leaf=2, global_links=2
    ... )
    >>> net.num_servers, len(net.switches), net.num_links
    (20, 20, 50)
    """
    sizes = {
        key: integer("dragonfly_plus", key, value, least=1)
        for key, value in (
            ("groups", groups),
            ("leaves_per_group", leaves_per_group),
            ("spines_per_group", spines_per_group),
            ("servers_per_leaf", servers_per_leaf),
            ("global_links", global_links),
        )
    }
    name = f"dragonfly_plus:{','.join(f'{key}={value}' for key, value in sizes.items())}"
    groups, leaves, spines, per_leaf, per_spine = sizes.values()
    if groups > spines * per_spine + 1:
        raise TopologyError(
            f"dragonfly_plus: groups must be at most spines_per_group·global_links + 1 = "
            f"{spines * per_spine + 1}, got {groups}"
        )
    servers, switches = groups * leaves * per_leaf, groups * (leaves + spines)
    inside = groups * leaves * spines
    check_size(name, servers + switches, servers + inside + groups * spines * per_spine // 2)
    server, (leaf, spine) = np.arange(servers), np.divmod(np.arange(inside), spines)
    first_spine = servers + groups * leaves
    across, parallel = global_link_pairs(groups, spines, per_spine)
    links = [
        np.stack([server, servers + server // per_leaf], axis=1),
        np.stack([servers + leaf, first_spine + leaf // leaves * spines + spine], axis=1),
        first_spine + across,
    ]
    return Topology.from_links(
        spec_name(name, link),
        servers=servers,
        switches=switches,
        links=np.concatenate(links),
        capacity=np.concatenate([np.ones(servers + inside, np.int64), parallel]),
        link=link,
    )
