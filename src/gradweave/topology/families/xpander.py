"""Xpander: a random lift of a complete graph of switches, nearly the best possible expander."""

import numpy as np

from gradweave.errors import TopologyError
from gradweave.topology.families.family import check_size, integer
from gradweave.topology.families.random_graph import is_connected
from gradweave.topology.families.switch_graph import servers_per_switch as checked_servers
from gradweave.topology.families.switch_graph import switch_graph
from gradweave.topology.topology import Link, Topology

_ATTEMPTS = 20
"""Most lifts drawn until one is connected; almost all are, if the degree is 3 or more."""


def xpander(
    degree: int,
    lift: int,
    servers_per_switch: int = 1,
    seed: int = 0,
    *,
    link: Link | None = None,
) -> Topology:
    """Makes an Xpander: degree + 1 groups of `lift` switches, every two matched at random.

    Switches are numbered group by group; no two of a group are linked.

    Args:
        degree: links of each switch to others, at least 2.
        lift: switches of each group.
        servers_per_switch: servers on each switch; 0: no switches, but servers linked directly.
        seed: seed of the matchings; the same seed gives the same network.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter, or no connected lift was found.

    Source: Valadarsky, Shahaf, Dinitz and Schapira, "Xpander: towards optimal-performance
        datacenters", CoNEXT 2016.

    >>> xpander(degree=4, lift=4)
    Topology('xpander:degree=4,lift=4,seed=0': 20 servers, 20 switches, 60 links)
    """
    degree = integer("xpander", "degree", degree, least=2)
    lift = integer("xpander", "lift", lift, least=1)
    per_switch, several = checked_servers("xpander", servers_per_switch)
    seed = integer("xpander", "seed", seed, least=0, most=(1 << 63) - 1)
    name = f"xpander:degree={degree},lift={lift}{several},seed={seed}"
    switches = (degree + 1) * lift
    check_size(name, switches * (per_switch + 1), switches * (per_switch + degree))
    random, low, high = np.random.default_rng(seed), *np.triu_indices(degree + 1, 1)
    within = np.tile(np.arange(lift), (len(low), 1))
    for _ in range(_ATTEMPTS):
        matched = random.permuted(within, axis=1)
        pairs = np.stack([low[:, None] * lift + within, high[:, None] * lift + matched], axis=2)
        pairs = pairs.reshape(-1, 2)
        if is_connected(switches, pairs):
            return switch_graph(name, switches, per_switch, pairs, link)
    raise TopologyError(
        f"{name}: none of {_ATTEMPTS} lifts was connected; give a higher degree or another seed"
    )
