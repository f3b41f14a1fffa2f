"""Servers in cities: a published table of delays and bandwidths between data centres."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from gradweave.common.checks import did_you_mean
from gradweave.errors import TopologyError
from gradweave.topology.families.family import check_size, integer
from gradweave.topology.topology import Link, Topology
from gradweave.topology.units import exact_bandwidth

CITIES = """
Oregon Virginia 67 0.79      Oregon Ohio 49 1.10           Oregon Tokyo 96 0.523
Oregon Seoul 124 0.46        Oregon Singapore 163 0.341    Oregon Sydney 139 0.36
Oregon London 136 0.42       Oregon Frankfurt 143 0.404    Oregon Ireland 124 0.482
Virginia Ohio 11 1.12        Virginia Tokyo 143 0.524      Virginia Seoul 172 0.500
Virginia Singapore 230 0.364 Virginia Sydney 197 0.383     Virginia London 76 1.16
Virginia Frankfurt 90 1.02   Virginia Ireland 67 1.05      Ohio Tokyo 130 0.694
Ohio Seoul 159 0.529         Ohio Singapore 197 0.452      Ohio Sydney 185 0.484
Ohio London 86 1.05          Ohio Frankfurt 99 0.799       Ohio Ireland 77 1.14
Tokyo Seoul 34 1.10          Tokyo Singapore 73 1.01       Tokyo Sydney 100 0.761
Tokyo London 210 0.366       Tokyo Frankfurt 223 0.36      Tokyo Ireland 199 0.465
Seoul Singapore 74 1.14      Seoul Sydney 148 0.58         Seoul London 238 0.342
Seoul Frankfurt 235 0.358    Seoul Ireland 228 0.335       Singapore Sydney 92 0.816
Singapore London 169 0.500   Singapore Frankfurt 155 0.535 Singapore Ireland 179 0.492
Sydney London 262 0.326      Sydney Frankfurt 265 0.328    Sydney Ireland 254 0.344
London Frankfurt 14 1.14     London Ireland 12 1.09        Frankfurt Ireland 24 1.08
"""
"""Two of ten cities, delay in ms, Gbit/s.

Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments",
NeurIPS 2022: the table of its scheduler's configuration. The delays are as long as round trips
between these places are.
"""

NEAR_DELAY_MS, NEAR_BYTES_PER_S = 5.0, 2.5e8
"""Within a city, as the same configuration has it: 2 Gbit/s."""

PLACES = {
    "Oregon": (45.8, -119.7), "Virginia": (38.9, -77.4), "Ohio": (40.0, -83.0),
    "Tokyo": (35.7, 139.7), "Seoul": (37.6, 127.0), "Singapore": (1.3, 103.8),
    "Sydney": (-33.9, 151.2), "London": (51.5, -0.1), "Frankfurt": (50.1, 8.7),
    "Ireland": (53.3, -6.3),
}  # fmt: skip
"""Degrees north and east, about, for drawings."""
_SPREAD = 2.2
"""Degrees between servers of one city, as they are drawn."""


def between(one: str, other: str) -> tuple[float, float]:
    """Delay in ms and bandwidth in Gbit/s between two cities, as published; or within one.

    >>> between("Tokyo", "Oregon")
    (96.0, 0.523)
    """
    if one == other:
        return NEAR_DELAY_MS, NEAR_BYTES_PER_S * 8e-9
    return _TABLE[frozenset((one, other))]


def _table() -> dict[frozenset[str], tuple[float, float]]:
    words = CITIES.split()
    rows = (words[i : i + 4] for i in range(0, len(words), 4))
    return {frozenset((a, b)): (float(ms), float(gbit)) for a, b, ms, gbit in rows}


_TABLE = _table()


def cities(
    names: Sequence[str] = tuple(PLACES),
    each: int = 1,
    near: float = NEAR_BYTES_PER_S,
    *,
    link: Link | None = None,
) -> Topology:
    """Makes a network of servers in cities, with a link between every two of them.

    Each link has the published bandwidth of its cities to itself, and half of the published delay,
    which is a round trip's, as its latency.

    Args:
        names: of the cities, some of the ten.
        each: servers in each city.
        near: bytes per second between two servers of one city.
        link: for its overhead and capacity; bandwidth and latency are the table's.

    Raises:
        TopologyError: a city is unknown or named twice.

    >>> cities(["Oregon", "Tokyo"], each=2)
    Topology('cities:Oregon.Tokyo,each=2': 4 servers, 0 switches, 6 links)
    """
    by_lower = {name.lower(): name for name in PLACES}
    chosen = [_known(name, by_lower) for name in names]
    twice = next((name for name in chosen if chosen.count(name) > 1), None)
    if twice is not None:
        raise TopologyError(f"cities: {twice} is given twice; each=2 has two servers in each city")
    each = integer("cities", "each", each, least=1)
    count = len(chosen) * each
    body = f"cities:{'.'.join(chosen)},each={each}"
    body += f",near={exact_bandwidth(near)}" if near != NEAR_BYTES_PER_S else ""
    check_size(body, count, count * (count - 1) // 2)
    home = [name for name in chosen for _ in range(each)]
    pairs = np.stack(np.triu_indices(count, 1), axis=1) if count > 1 else np.zeros((0, 2), int)
    figures = [between(home[a], home[b]) for a, b in pairs.tolist()]
    delay, gbit = np.array(figures).reshape(-1, 2).T
    same = np.array([home[a] == home[b] for a, b in pairs.tolist()], bool)
    made = Topology.from_links(
        body,
        servers=count,
        switches=0,
        links=pairs,
        link=link,
        bandwidth_bytes_per_s=np.where(same, near, gbit * 1.25e8),
        positions=_positions(chosen, each),
    )
    return _labelled(made, home, each, pairs, delay)


def _labelled(
    made: Topology, home: list[str], each: int, pairs: np.ndarray, delay_ms: np.ndarray
) -> Topology:
    """The network with its latencies and its servers' names."""
    latency = np.zeros((len(home), len(home)))
    latency[pairs[:, 0], pairs[:, 1]] = latency[pairs[:, 1], pairs[:, 0]] = delay_ms / 2e3
    labels = home if each == 1 else [f"{name} {i % each + 1}" for i, name in enumerate(home)]
    return dataclasses.replace(
        made, latency_s=latency[made.source, made.target], labels=tuple(labels)
    )


def _known(name: str, by_lower: dict[str, str]) -> str:
    known = by_lower.get(name.strip().lower())
    if known is None:
        guess = did_you_mean(name, by_lower.values())
        raise TopologyError(
            f"cities: unknown city {name!r:.40}; {guess}known are {', '.join(by_lower.values())}"
        )
    return known


def _positions(names: list[str], each: int) -> np.ndarray:
    """[V, 2] degrees east and north, the servers of a city in a square around it."""
    side = int(np.ceil(np.sqrt(each)))
    offsets = np.array([(i % side, i // side) for i in range(each)]) - (side - 1) / 2
    centres = np.array([PLACES[name][::-1] for name in names])
    return (centres[:, None] + _SPREAD * offsets).reshape(-1, 2)
