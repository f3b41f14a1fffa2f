"""Small random networks, trees and policies for Hypothesis."""

import numpy as np
from hypothesis import strategies as st

from gradweave.topology import Topology


@st.composite
def networks(
    draw: st.DrawFn,
    *,
    max_servers: int = 6,
    max_switches: int = 3,
    max_capacity: int = 3,
    symmetric: bool = False,
    uniform: bool = False,
) -> Topology:
    """A connected network with servers and switches in any order of id.

    Args:
        draw: Hypothesis's.
        max_servers: most servers; at least 2.
        max_switches: most switches.
        max_capacity: largest capacity of a link direction.
        symmetric: whether both directions of a link have the same capacity.
        uniform: whether all links have the same bandwidth, latency and overhead.
    """
    servers = draw(st.integers(2, max_servers))
    switches = draw(st.integers(0, max_switches))
    nodes = servers + switches
    is_server = draw(st.permutations([True] * servers + [False] * switches))
    order = draw(st.permutations(range(nodes)))
    pairs = {
        tuple(sorted((order[node], order[draw(st.integers(0, node - 1))])))
        for node in range(1, nodes)
    }
    missing = sorted({(a, b) for b in range(nodes) for a in range(b)} - pairs)
    if missing:
        pairs |= set(draw(st.lists(st.sampled_from(missing), max_size=nodes, unique=True)))
    source = np.array([end for a, b in sorted(pairs) for end in (a, b)])
    target = np.array([end for a, b in sorted(pairs) for end in (b, a)])

    def column(values: st.SearchStrategy, alike: bool) -> np.ndarray:
        if alike:
            one_way = draw(st.lists(values, min_size=len(pairs), max_size=len(pairs)))
            return np.repeat(one_way, 2)
        return np.array(draw(st.lists(values, min_size=len(source), max_size=len(source))))

    bandwidths = st.just(1e9) if uniform else st.sampled_from([1e9, 2e9, 2.5e9, 7e9])
    latencies = st.just(1e-6) if uniform else st.sampled_from([0.0, 1e-6, 3e-3])
    overheads = st.just(1e-6) if uniform else st.sampled_from([0.0, 1e-6, 2e-3])
    return Topology(
        name="random",
        is_server=np.array(is_server),
        source=source,
        target=target,
        bandwidth_bytes_per_s=column(bandwidths, False),
        latency_s=column(latencies, False),
        capacity=column(st.integers(1, max_capacity), symmetric),
        overhead_s=column(overheads, False),
    )
