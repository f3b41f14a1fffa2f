"""Jellyfish: a random regular graph of switches, with servers on each."""

import functools
import json
from importlib import resources
from typing import Any

import numpy as np

from gradweave.errors import TopologyError
from gradweave.topology.families.family import check_size, integer
from gradweave.topology.families.random_graph import connected_random_graph
from gradweave.topology.families.switch_graph import servers_per_switch as checked_servers
from gradweave.topology.families.switch_graph import switch_graph
from gradweave.topology.topology import Link, Topology


def jellyfish(
    switches: int,
    degree: int,
    servers_per_switch: int = 1,
    seed: int = 0,
    *,
    link: Link | None = None,
) -> Topology:
    """Makes a Jellyfish: a random regular graph of switches, with equally many servers on each.

    Server i is on switch i // servers_per_switch; the switches follow the servers. Every switch has
    `degree` links to others, except that one port stays free if the sum of degrees is odd.

    Args:
        switches: number of switches, at least 2.
        degree: ports of each switch that go to other switches, less than `switches`.
        servers_per_switch: servers on each switch; 0: no switches, but servers linked directly.
        seed: seed of the random graph; the same seed gives the same network.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter, or no connected graph was found.

    Source: Singla et al., "Jellyfish: networking data centers randomly", NSDI 2012, section 3.

    >>> jellyfish(switches=10, degree=4, seed=0)
    Topology('jellyfish:switches=10,degree=4,seed=0': 10 servers, 10 switches, 30 links)
    """
    switches = integer("jellyfish", "switches", switches, least=2)
    degree = integer("jellyfish", "degree", degree, least=1)
    per_switch, several = checked_servers("jellyfish", servers_per_switch)
    seed = integer("jellyfish", "seed", seed, least=0, most=(1 << 63) - 1)
    if degree >= switches:
        raise TopologyError(
            f"jellyfish: degree must be less than the number of switches, {switches}; got {degree}"
        )
    name = f"jellyfish:switches={switches},degree={degree}{several},seed={seed}"
    check_size(name, switches * (per_switch + 1), switches * (per_switch + degree))
    pairs = connected_random_graph(name, switches, degree, np.random.default_rng(seed))
    return switch_graph(name, switches, per_switch, pairs, link)


def jellyfish_reference(name: str, seed: int = 0, *, link: Link | None = None) -> Topology:
    """One of the fixed Jellyfish graphs behind results for "J10", "J15" and "J20".

    They have 10, 15 and 20 switches of degree 4 with one server each, server i on switch i. Those
    of J20 are one link short of regular, as in the paper.

    Args:
        name: ``"J10"``, ``"J15"`` or ``"J20"``.
        seed: which of the 20 graphs of that size.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: there is no such graph.

    >>> jellyfish_reference("J20", seed=3)
    Topology('jellyfish:reference=J20,seed=3': 20 servers, 20 switches, 59 links)
    """
    graphs = _reference_graphs()
    if name not in graphs:
        raise TopologyError(
            f"jellyfish: reference must be one of {', '.join(graphs)}; got {name!r:.40}"
        )
    graph = graphs[name]
    by_seed = graph["switch_links_by_seed"]
    seed = integer("jellyfish", "seed", seed, least=0, most=len(by_seed) - 1)
    title = f"jellyfish:reference={name},seed={seed}"
    return switch_graph(title, graph["switches"], 1, np.array(by_seed[seed]), link)


@functools.cache
def _reference_graphs() -> dict[str, Any]:
    data = resources.files("gradweave.topology.families") / "data" / "jellyfish-reference.json"
    return json.loads(data.read_text("utf-8"))
