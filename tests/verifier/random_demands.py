"""Random demands on random networks, and random valid schedules for them.

Drawn by a `random.Random`: Hypothesis's in the tests, a seeded one in
benchmarks/experiments/random_demands.py.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random

from gradweave.schedules import COPY, DEMAND, REDUCE
from gradweave.topology import Topology
from tests.verifier.mutations import has_to_do
from tests.verifier.oracle import Asked, Block, Draft, Row, capacities
from tests.verifier.random_schedules import network_of


@dataclasses.dataclass(eq=False)
class Hop:
    """A transfer that is to be given a round."""

    piece: int
    op: int
    route: tuple[int, ...]
    after: list["Hop"]
    """Those that must be in earlier rounds."""
    round: int = -1


def random_network(draw: Random, most_nodes: int = 8) -> Topology:
    """A connected network with servers anywhere, and capacities different per direction."""
    nodes = draw.randint(2, most_nodes)
    switches = draw.sample(range(nodes), draw.randint(0, min(nodes - 2, 3)))
    pairs = {(draw.randrange(v), v) for v in range(1, nodes)}
    others = list(itertools.combinations(range(nodes), 2))
    pairs |= set(draw.sample(others, min(len(others), draw.randint(0, nodes))))
    capacity = [draw.randint(1, 3) for _ in range(2 * len(pairs))]
    return network_of(nodes, switches, sorted(pairs), capacity)


def random_asked(draw: Random, servers: list[int]) -> Asked:
    """Up to three jobs, whose servers may overlap, of several blocks, of several pieces."""
    blocks = []
    for job in range(draw.randint(1, 3)):
        group = draw.sample(servers, draw.randint(2, len(servers)))
        for _ in range(draw.randint(1, 3)):
            sizes = [draw.choice((1, len(group), draw.randint(1, len(group)))) for _ in range(2)]
            block = Block(job, *(frozenset(draw.sample(group, size)) for size in sizes))
            blocks.append(
                block if has_to_do(block) else Block(job, *map(frozenset, (group, group)))
            )
    draw.shuffle(blocks)
    block = [b for b in range(len(blocks)) for _ in range(draw.choice((1, 1, 2, 3)))]
    relays = draw.sample(servers, draw.choice((0, 0, 1, len(servers))))
    return Asked(tuple(blocks), tuple(block), frozenset(relays))


def random_draft(draw: Random) -> Draft:
    """A valid schedule of a random demand. All servers are relays where it needs some."""
    topology = random_network(draw)
    servers = topology.servers.tolist()
    asked = random_asked(draw, servers)
    pieces = range(len(asked.block))
    if any(_meeting_point(draw, topology, asked, piece) is None for piece in pieces):
        asked = dataclasses.replace(asked, relays=frozenset(servers))
    hops, root = [], []
    for piece in pieces:
        root.append(_meeting_point(draw, topology, asked, piece))
        block, allowed = asked.of_piece(piece), asked.allowed(piece)
        gather = _gathered(draw, topology, allowed, piece, root[-1], block.contributors)
        hops += gather
        hops += _spread(draw, topology, allowed, piece, root[-1], block.destinations, gather)
    _give_rounds(draw, topology, hops)
    rows = (Row(h.round, h.piece, h.route[0], h.route[-1], h.op, h.route) for h in hops)
    return Draft(topology, DEMAND, tuple(root), tuple(sorted(rows)), asked)


def _meeting_point(draw: Random, topology: Topology, asked: Asked, piece: int) -> int | None:
    """A server where a piece may be summed; None where its servers do not reach each other."""
    block, allowed = asked.of_piece(piece), sorted(asked.allowed(piece))
    ends = sorted(block.contributors | block.destinations)
    reached = set(_tree(draw, topology, set(allowed), ends[0]))
    if not reached.issuperset(ends):
        return None
    return draw.choice(draw.choice((ends, sorted(reached.intersection(allowed)))))


def _tree(draw: Random, topology: Topology, allowed: set[int], root: int) -> dict[int, int]:
    """A random tree over switches and allowed servers: the next node of each towards the root."""
    barred, above = set(topology.servers.tolist()) - allowed, {root: root}
    links = list(capacities(topology))
    while edge := [(a, b) for a, b in links if a in above and b not in above and b not in barred]:
        node, further = draw.choice(edge)
        above[further] = node
    return above


def _paths(
    draw: Random, topology: Topology, allowed: set[int], root: int, ends: Iterable[int]
) -> Iterator[tuple[int, ...]]:
    """Routes of a random tree from stop to next stop towards the root, those from far ones first.

    Stops are the root, the ends, and some of the servers between them.
    """
    above = _tree(draw, topology, allowed, root)
    used = {root: 0}
    for end in sorted(ends):
        path = [end]
        while path[-1] != root:
            path.append(above[path[-1]])
        used |= {node: depth for depth, node in enumerate(reversed(path))}
    between = sorted(set(used) & allowed)
    stops = {root, *ends, *(server for server in between if draw.random() < 0.7)}
    for stop in sorted(stops & used.keys() - {root}, key=lambda node: -used[node]):
        route = [stop]
        while len(route) < 2 or route[-1] not in stops:
            route.append(above[route[-1]])
        yield tuple(route)


def _gathered(
    draw: Random,
    topology: Topology,
    allowed: set[int],
    piece: int,
    root: int,
    contributors: frozenset[int],
) -> list[Hop]:
    """Hops that sum a piece up at its root.

    What comes first into a server that does not contribute is copied, over what it holds.
    """
    hops: list[Hop] = []
    for route in _paths(draw, topology, allowed, root, contributors):
        into_source = [hop for hop in hops if hop.route[-1] == route[0]]
        into_target = [hop for hop in hops if hop.route[-1] == route[-1]]
        first = route[-1] not in contributors and not into_target
        after = into_source + [hop for hop in into_target if hop.op == COPY]
        hops.append(Hop(piece, COPY if first else REDUCE, route, after))
    return hops


def _spread(
    draw: Random,
    topology: Topology,
    allowed: set[int],
    piece: int,
    root: int,
    destinations: frozenset[int],
    gather: list[Hop],
) -> list[Hop]:
    """Hops that bring a piece from its root to its destinations."""
    into = {}
    for route in reversed([*_paths(draw, topology, allowed, root, destinations)]):
        after = [into[route[-1]]] if route[-1] in into else gather
        into[route[0]] = Hop(piece, COPY, route[::-1], after)
    return [*into.values()]


def _give_rounds(draw: Random, topology: Topology, hops: list[Hop]) -> None:
    """Puts each hop into a round behind those that it waits for, where its links have room."""
    capacity, load = capacities(topology), Counter()
    waiting = list(hops)
    while waiting:
        ready = [hop for hop in waiting if all(one.round >= 0 for one in hop.after)]
        hop = draw.choice(ready)
        waiting.remove(hop)
        at = 1 + max((one.round for one in hop.after), default=-1) + draw.choice((0, 0, 0, 1))
        links = [*itertools.pairwise(hop.route)]
        while any(load[at, link] >= capacity[link] for link in links):
            at += 1
        load.update((at, link) for link in links)
        hop.round = at
