"""Messages cut into parts that each take one path, and those paths as transfers."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.demands.concurrent_flow import ConcurrentFlow
from gradweave.schedulers.demands.concurrent_flow_kernel import Graph, no_work
from gradweave.schedulers.demands.rounding_kernel import Routes, reroute
from gradweave.schedulers.demands.rounds_kernel import Transfers
from gradweave.topology.routes import switch_only_trees
from gradweave.topology.symmetry import FreeGroup
from gradweave.topology.topology import Topology

PASSES = 6
"""Over all parts, to find each a better path; after the first few hardly any moves."""
SPARE_LINKS = 4
"""By how many links a part's path may be longer than the longest that carries flow."""
MAX_ROUTES = 16
"""Routes of a hop, of fewest links, between which a round may choose."""
DEARER = 0.01
"""How much more of the largest length such a route may have than the planned one."""


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """Parts of messages, each with its path; of one message they are of one size."""

    message: NDArray[np.int64]
    """[P] message of each part, ascending."""
    links: NDArray[np.int64]
    """[P, longest] link directions of its path, from source to target; −1 after the last."""


def parts_of(
    flow: ConcurrentFlow, count: NDArray[np.int64], *, group: FreeGroup | None = None, seed: int = 0
) -> Parts:
    """Cuts messages into parts, whose paths load links about as the flow does.

    As many parts take each of a message's paths as its flow says, rounded; then parts change to
    cheaper paths one after the other. Under a group that is done for one message of each orbit.

    Args:
        flow: of the messages, found under the same group, or without symmetry.
        count: [K] parts of each message, the same for all images of one.
        group: automorphisms that leave the messages as they are; each pair of servers has one
            message then.
        seed: of the order in which parts change.
    """
    messages, topology = flow.messages, flow.messages.topology
    nodes = topology.num_nodes
    pair = messages.source * nodes + messages.target
    pairs, place = np.unique(pair, return_inverse=True)
    sources = flow.sources
    own = np.repeat(sources.root, np.diff(sources.first)) * nodes + sources.target % nodes
    wanted = np.bincount(place, count, len(pairs)).astype(np.int64)[np.searchsorted(pairs, own)]
    routes, of_pair = _rounded(flow, wanted)
    permutations = np.arange(nodes)[None] if group is None else group.permutations
    _balance(flow, routes, len(permutations), seed)
    backward = np.arange(routes.links.shape[1]) < routes.length[:, None]
    at = np.maximum(routes.length[:, None] - 1 - np.arange(routes.links.shape[1]), 0)
    forward = np.where(backward, np.take_along_axis(routes.links, at, axis=1), -1)
    moved_links, moved_pairs = [], []
    for moved in permutations:
        image = topology.find_links(moved[topology.source], moved[topology.target])
        moved_links.append(np.where(forward >= 0, image[forward], -1))
        source, target = np.divmod(own[of_pair], nodes)
        moved_pairs.append(moved[source].astype(np.int64) * nodes + moved[target])
    of = np.searchsorted(pairs, np.concatenate(moved_pairs))
    by_pair = np.argsort(of, kind="stable")
    message = np.repeat(np.argsort(place, kind="stable"), count[np.argsort(place, kind="stable")])
    by_message = np.argsort(message, kind="stable")
    return Parts(message[by_message], np.concatenate(moved_links)[by_pair][by_message])


def _rounded(flow: ConcurrentFlow, wanted: NDArray[np.int64]) -> tuple[Routes, NDArray[np.int64]]:
    """So many parts of each pair on its paths, by largest remainders; the pair of each part."""
    paths, sources = flow.paths, flow.sources
    count = int(paths.length[0])
    pair = paths.message[:count].astype(np.int64)
    exact = paths.flow[:count] / sources.amount[pair] * wanted[pair]
    parts = np.floor(exact + 1e-9).astype(np.int64)
    missing = wanted - np.bincount(pair, parts, len(wanted)).astype(np.int64)
    order = np.lexsort((parts - exact, pair))
    rank = np.arange(count) - np.searchsorted(pair, pair[order])
    parts[order] += rank < missing[pair[order]]
    path = np.repeat(np.arange(count), parts)
    length = np.diff(paths.first[: count + 1])
    links = np.full((len(path), int(length.max()) + SPARE_LINKS), -1, np.int32)
    column = np.arange(links.shape[1])
    there = column < length[path][:, None]
    links[there] = paths.links[(paths.first[path][:, None] + column)[there]]
    source = np.repeat(sources.root, np.diff(sources.first))[pair[path]].astype(np.int64)
    size = (sources.amount / np.maximum(wanted, 1))[pair[path]]
    target = sources.target[pair[path]]
    return Routes(links, length[path], source, target, size / size.mean()), pair[path]


def _balance(flow: ConcurrentFlow, routes: Routes, images: int, seed: int) -> None:
    """Changes parts' paths until no link carries more parts than the flow, rounded up."""
    messages = flow.messages
    source, target, nodes = messages.ends
    orbit = flow.orbit
    first = np.searchsorted(source, np.arange(nodes + 1)).astype(np.int64)
    capacity = np.zeros(int(orbit.max()) + 1)
    capacity[orbit] = messages.capacity("rounds" if flow.unit == "rounds" else "seconds")
    capacity /= capacity.min()
    unit = images / (np.bincount(orbit) * capacity)
    graph = Graph(first, source, target, orbit, unit)
    work, rng = no_work(graph), np.random.default_rng(seed)
    there = routes.links >= 0
    size = np.broadcast_to(routes.size[:, None], there.shape)[there]
    uses = np.bincount(orbit[routes.links[there]], size, len(unit))
    per_amount = images * len(routes.length) / messages.amount.sum()
    least = flow.bound * messages.capacity(flow.unit).min() * per_amount
    length = flow.length / flow.length.max()
    for number in range(PASSES):
        order = rng.permutation(len(routes.length))
        reroute(graph, routes, order, length, uses, work, seed + number)
        if (uses * unit).max() <= np.ceil(least - 1e-6) + 1e-9:
            break


def transfers_of(topology: Topology, parts: Parts, length: NDArray[np.float64]) -> Transfers:
    """The parts' paths as transfers from server to server, and what routes those may take.

    Args:
        topology: the network.
        parts: on paths that pass servers, at which they are stored.
        length: [L] of links as in `ConcurrentFlow`: no route may take more of what is scarce.
    """
    there = parts.links >= 0
    links = parts.links[there]
    ends = np.flatnonzero(topology.is_server[topology.target[links]])
    begins = np.append(0, ends[:-1] + 1)
    after_part = np.cumsum(there.sum(axis=1))
    first = np.append(0, np.searchsorted(ends, after_part))
    sent = [tuple(links[a : b + 1].tolist()) for a, b in zip(begins, ends, strict=True)]
    routes = _Alternatives(topology, length / length.max())
    for one in dict.fromkeys(sent):
        routes.add(one)
    return routes.transfers(first.astype(np.int64), sent)


class _Alternatives:
    """Routes by hop: those that were planned, and others with as few links."""

    def __init__(self, topology: Topology, dual: NDArray[np.float64]) -> None:
        """Args: the network, and [L] what each link is worth, up to one."""
        self.topology, self.dual = topology, dual
        self.found: dict[tuple[int, int], dict[tuple[int, ...], None]] = {}
        self.length = switch_only_trees(topology)[1] if topology.switches.size else None

    def add(self, route: tuple[int, ...]) -> None:
        """Notes a planned route, and with the first of a hop all that are as short as any."""
        topology = self.topology
        ends = int(topology.source[route[0]]), int(topology.target[route[-1]])
        if ends not in self.found:
            others = self._shortest(*ends) if len(route) > 2 else []
            most = self.dual[list(route)].sum() + DEARER
            self.found[ends] = dict.fromkeys(
                one for one in others if self.dual[list(one)].sum() <= most
            )
        self.found[ends][route] = None

    def _shortest(self, source: int, target: int) -> list[tuple[int, ...]]:
        """Some of the shortest routes through switches."""
        assert self.length is not None
        topology, length = self.topology, self.length[self.topology.rank[target]]
        routes: list[tuple[int, ...]] = []
        unfinished: list[tuple[int, tuple[int, ...]]] = [(source, ())]
        while unfinished and len(routes) < MAX_ROUTES:
            node, route = unfinished.pop()
            if node == target:
                routes.append(route)
                continue
            for link in range(topology.first_link[node], topology.first_link[node + 1]):
                to = int(topology.target[link])
                passes = to == target or not topology.is_server[to]
                if passes and length[to] == length[node] - 1:
                    unfinished.append((to, (*route, link)))
        return routes

    def transfers(self, first: NDArray[np.int64], sent: list[tuple[int, ...]]) -> Transfers:
        """Arrays of the transfers that take these routes, part after part."""
        table = [(hop, route) for hop, of in enumerate(self.found.values()) for route in of]
        number = {route: r for r, (_, route) in enumerate(table)}
        hop_of = np.array([hop for hop, _ in table])
        route = np.array([number[one] for one in sent])
        lengths = [len(one) for _, one in table]
        return Transfers(
            first,
            route,
            hop_of[route],
            np.searchsorted(hop_of, np.arange(len(self.found) + 1)).astype(np.int64),
            np.array([link for _, one in table for link in one], np.int64),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        )
