"""What valid means, once more: slow, in plain Python, and with nothing of the library's own.

SPEC "A schedule is valid when" taken literally. Two points that the text leaves open are settled as
the verifier's documentation settles them: a copy that shares its server, piece and round with any
other transfer into it is a conflict, since which of them is last is not defined; and in an
all-gather every server but a piece's root starts with its own stale contribution, so that adding to
it or passing it on shows. The same holds of a demand: each destination of a piece's block must end
with each of the block's contributors once and with nothing else, every server starts with its own
contribution, asked for or not, and no route of the piece passes a server but those of its job and
the relays.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from functools import cache
from itertools import groupby, pairwise
from typing import NamedTuple

from gradweave.schedules import COPY, DEMAND, REDUCE, Demand, Schedule
from gradweave.schedules.demand import Sets
from gradweave.topology import Topology


class Row(NamedTuple):
    """One transfer."""

    round: int
    piece: int
    source: int
    target: int
    op: int
    route: tuple[int, ...]


class Block(NamedTuple):
    """What is to be summed and moved."""

    job: int
    contributors: frozenset[int]
    destinations: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Asked:
    """A demand as plain values, which make one."""

    blocks: tuple[Block, ...]
    block: tuple[int, ...]
    """Of each piece, ascending."""
    relays: frozenset[int] = frozenset()

    @staticmethod
    def of(demand: Demand, block: Iterable[int]) -> "Asked":
        sets = zip(demand.job.tolist(), demand.contributors, demand.destinations, strict=True)
        blocks = tuple(
            Block(job, frozenset(given.tolist()), frozenset(gets.tolist()))
            for job, given, gets in sets
        )
        return Asked(blocks, tuple(block), frozenset(demand.relays.tolist()))

    def demand(self) -> Demand:
        return Demand(
            bytes=[12 * (number + 1) for number in range(len(self.blocks))],
            contributors=Sets.of([sorted(block.contributors) for block in self.blocks]),
            destinations=Sets.of([sorted(block.destinations) for block in self.blocks]),
            job=[block.job for block in self.blocks],
            jobs=tuple(f"job {number}" for number in range(1 + max(b.job for b in self.blocks))),
            relays=sorted(self.relays),
        )

    def of_piece(self, piece: int) -> Block:
        return self.blocks[self.block[piece]]

    def allowed(self, piece: int) -> set[int]:
        """Servers that may have to do with a piece."""
        mine = [one for one in self.blocks if one.job == self.of_piece(piece).job]
        return set(self.relays).union(*(one.contributors | one.destinations for one in mine))


@dataclasses.dataclass(frozen=True)
class Draft:
    """A schedule as plain values, which need not make sense."""

    topology: Topology
    collective: str
    root: tuple[int, ...]
    rows: tuple[Row, ...]
    asked: Asked | None = None
    """A demand, where the collective is not one among all servers."""

    @staticmethod
    def of(schedule: Schedule) -> "Draft":
        columns = (schedule.round, schedule.piece, schedule.source, schedule.target, schedule.op)
        values = zip(*(column.tolist() for column in columns), strict=True)
        rows = tuple(Row(*row, schedule.route(t)) for t, row in enumerate(values))
        root, asked = tuple(schedule.root.tolist()), None
        if schedule.demand is not None:
            asked = Asked.of(schedule.demand, schedule.block.tolist())
        collective = schedule.collective if asked is None else DEMAND
        return Draft(schedule.topology, collective, root, rows, asked)

    def schedule(self) -> Schedule:
        """The same as a `Schedule`; raises `ScheduleError` where the columns make none."""
        columns = [*zip(*self.rows, strict=True)] or [()] * len(Row._fields)
        rounds, pieces, sources, targets, ops, routes = columns
        offsets = [0]
        for route in routes:
            offsets.append(offsets[-1] + len(route))
        return Schedule(
            topology=self.topology,
            collective=self.collective,
            root=list(self.root),
            round=list(rounds),
            piece=list(pieces),
            source=list(sources),
            target=list(targets),
            op=list(ops),
            route_nodes=[node for route in routes for node in route],
            route_offsets=offsets,
            demand=None if self.asked is None else self.asked.demand(),
            block=None if self.asked is None else list(self.asked.block),
        )


class Held(dict[tuple[int, int], Counter[int]]):
    """Who is in the partial sum of each (node, piece), and how often.

    As at the start until changed.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.servers = draft.topology.servers.tolist()

    def __missing__(self, cell: tuple[int, int]) -> Counter[int]:
        node, piece = cell
        if self.draft.collective == "all_gather" and node == self.draft.root[piece]:
            return Counter(self.servers)
        return Counter([node] if node in self.servers else [])


def faults(
    draft: Draft,
    *,
    forwarding_servers: bool = True,
    aggregating_switches: bool = False,
    pieces: Collection[int] | None = None,
) -> set[str]:
    """The kinds of rules that a schedule breaks; none where it is valid.

    Where a route does not exist the rest is not looked at, and the contributions are only counted
    where nothing else is wrong: what they come to is not defined then.

    Args:
        draft: the schedule.
        forwarding_servers: whether routes may pass through servers.
        aggregating_switches: whether switches may add.
        pieces: count the contributions of these pieces only; the others are known to be right.
    """
    capacity = capacities(draft.topology)
    servers = set(draft.topology.servers.tolist())
    found = set()
    for row in draft.rows:
        if not is_path(row, draft.topology):
            return {"route"}
        if not aggregating_switches and not {row.source, row.target} <= servers:
            found.add("endpoint")
        if not forwarding_servers and set(row.route[1:-1]) & servers:
            found.add("forwarding")
        if draft.asked and not set(row.route) & servers <= draft.asked.allowed(row.piece):
            found.add("relay")
    load = Counter((row.round, link) for row in draft.rows for link in pairwise(row.route))
    if any(count > capacity[link] for (_, link), count in load.items()):
        found.add("capacity")
    writes = defaultdict(list)
    for row in draft.rows:
        writes[row.round, row.target, row.piece].append(row.op)
    if any(len(ops) > 1 and COPY in ops for ops in writes.values()):
        found.add("conflict")
    pieces = range(len(draft.root)) if pieces is None else pieces
    counted = dataclasses.replace(draft, rows=[row for row in draft.rows if row.piece in pieces])
    if not found and wrong_cells(draft, end_state(counted), pieces):
        found.add("result")
    return found


@cache
def capacities(topology: Topology) -> dict[tuple[int, int], int]:
    columns = (topology.source, topology.target, topology.capacity)
    return {(a, b): c for a, b, c in zip(*(column.tolist() for column in columns), strict=True)}


@cache
def is_path(row: Row, topology: Topology) -> bool:
    """Whether the route runs from source to target over links, through no node twice."""
    links = capacities(topology)
    return (
        len(row.route) >= 2
        and (row.route[0], row.route[-1]) == (row.source, row.target)
        and len(set(row.route)) == len(row.route)
        and all(link in links for link in pairwise(row.route))
    )


def end_state(draft: Draft) -> Held:
    """Plays all rounds: every transfer sends what its source held when the round began."""
    held = Held(draft)
    for _, together in groupby(sorted(draft.rows), key=lambda row: row.round):
        sent = [(row, Counter(held[row.source, row.piece])) for row in together]
        for row, partial_sum in sent:
            if row.op == REDUCE:
                partial_sum.update(held[row.target, row.piece])
            held[row.target, row.piece] = partial_sum
    return held


def wrong_cells(
    draft: Draft, held: Held, pieces: Collection[int]
) -> dict[tuple[int, int], Counter[int]]:
    """The (server, piece) that must hold certain contributions once at the end, and do not."""
    if draft.asked:
        blocks = {piece: draft.asked.of_piece(piece) for piece in pieces}
        return {
            (server, piece): held[server, piece]
            for piece, block in blocks.items()
            for server in block.destinations
            if held[server, piece] != Counter(block.contributors)
        }
    servers = draft.topology.servers.tolist()
    if draft.collective == "reduce_scatter":
        asked = [(draft.root[piece], piece) for piece in pieces]
    else:
        asked = [(server, piece) for piece in pieces for server in servers]
    once = Counter(servers)
    return {cell: held[cell] for cell in asked if held[cell] != once}
