"""Every way to change one thing about a schedule, and what the verifier says to each.

Used by the tests and by benchmarks/experiments/mutations.py.
"""

import dataclasses
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import zip_longest

import numpy as np

from gradweave.errors import ScheduleError, TopologyError
from gradweave.schedules import COLLECTIVES, Schedule
from gradweave.topology import Topology, shortest_route
from gradweave.topology.topology import LINK_COLUMNS
from gradweave.verifier import verify
from tests.verifier.oracle import Block, Draft, Row, faults

Few = Callable[[Iterable], Iterable]
"""Picks some of the alternatives that a mutation has at one transfer."""


def mutated(draft: Draft, seed: int, times: int) -> Draft | None:
    """A schedule mutated so often, at random; None where one of them leaves no route or nothing.

    Args:
        draft: to begin with.
        seed: of the draws, first of a mutation, then of a place for it.
        times: 0 or more.
    """
    for step in range(times):
        draw, by_name = random.Random(seed + step), defaultdict(list)
        for name, mutant in mutants(draft, most=1, seed=seed):
            by_name[name].append(mutant)
        draft = draw.choice(by_name[draw.choice([*by_name])])
        if any(len(row.route) < 2 for row in draft.rows) or not draft.rows:
            return None
    return draft


def mutants(draft: Draft, most: int | None = None, seed: int = 0) -> Iterator[tuple[str, Draft]]:
    """Every single mutation of a schedule, with its name.

    Args:
        draft: the schedule.
        most: alternatives tried per mutation and transfer, drawn at random; None for all.
        seed: of the draw.
    """
    draw = random.Random(seed)

    def few(options: Iterable) -> Iterable:
        options = list(options)
        return options if most is None or len(options) <= most else draw.sample(options, most)

    for t, row in enumerate(draft.rows):
        for name, changed in _changed_rows(draft, row, few):
            if changed != row:
                yield name, _with_rows(draft, {t: changed})
        yield "transfer deleted", _with_rows(draft, {}, without=t)
        yield "transfer twice in a round", _with_rows(draft, {}, more=[row])
        for later in few(range(row.round + 1, _rounds(draft) + 1)):
            again = row._replace(round=later)
            yield "transfer again, later", _with_rows(draft, {}, more=[again])
        for u in few(range(t + 1, len(draft.rows))):
            for name, pair in _exchanges(row, draft.rows[u]):
                if set(pair) != {row, draft.rows[u]}:
                    yield name, _with_rows(draft, dict(zip((t, u), pair, strict=True)))
    yield from _changed_whole(draft, few)


def _changed_rows(draft: Draft, row: Row, few: Few) -> Iterator[tuple[str, Row]]:
    topology, route = draft.topology, row.route
    nodes, servers = range(topology.num_nodes), topology.servers.tolist()
    for at in few(range(row.round)):
        yield "round earlier", row._replace(round=at)
    for at in few(range(row.round + 1, _rounds(draft) + 1)):
        yield "round later", row._replace(round=at)
    for piece in few(p for p in range(len(draft.root)) if p != row.piece):
        yield "piece", row._replace(piece=piece)
    yield "op", row._replace(op=1 - row.op)
    for node in few(n for n in nodes if n != row.source):
        yield "source, route kept", row._replace(source=node)
    for node in few(n for n in nodes if n != row.target):
        yield "target, route kept", row._replace(target=node)
    for node in few(s for s in servers if s not in (row.source, row.target)):
        there = shortest_route(topology, node, row.target)
        yield "source and route", row._replace(source=node, route=there)
        there = shortest_route(topology, row.source, node)
        yield "target and route", row._replace(target=node, route=there)
    back = row._replace(source=row.target, target=row.source, route=route[::-1])
    yield "direction", back
    yield "route reversed", row._replace(route=route[::-1])
    for place in range(len(route)):
        before, after = route[:place], route[place + 1 :]
        yield "route: node dropped", row._replace(route=before + after)
        for node in few(n for n in nodes if n != route[place]):
            yield "route: node replaced", row._replace(route=(*before, node, *after))
            yield "route: node inserted", row._replace(route=(*before, node, *route[place:]))
    for node in few(nodes):
        yield "route: node appended", row._replace(route=(*route, node))
    for detour in few(_detours(topology, route)):
        yield "route: detour", row._replace(route=detour)


def _detours(topology: Topology, route: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Other paths between the same ends: one link replaced by two."""
    near = [
        set(topology.target[topology.first_link[v] : topology.first_link[v + 1]].tolist())
        for v in range(topology.num_nodes)
    ]
    for place in range(len(route) - 1):
        for node in sorted((near[route[place]] & near[route[place + 1]]) - set(route)):
            yield (*route[: place + 1], node, *route[place + 1 :])
    for place in range(1, len(route) - 1):
        for node in sorted((near[route[place - 1]] & near[route[place + 1]]) - set(route)):
            yield (*route[:place], node, *route[place + 1 :])


def _exchanges(one: Row, other: Row) -> Iterator[tuple[str, tuple[Row, Row]]]:
    for name, fields in (
        ("pieces exchanged", ("piece",)),
        ("rounds exchanged", ("round",)),
        ("routes exchanged", ("route",)),
        ("routes and ends exchanged", ("source", "target", "route")),
    ):
        ones = {field: getattr(other, field) for field in fields}
        others = {field: getattr(one, field) for field in fields}
        yield name, (one._replace(**ones), other._replace(**others))


def _changed_whole(draft: Draft, few: Few) -> Iterator[tuple[str, Draft]]:
    topology = draft.topology
    for piece, root in enumerate(draft.root):
        for server in few(s for s in topology.servers.tolist() if s != root):
            moved = (*draft.root[:piece], server, *draft.root[piece + 1 :])
            yield "root of a piece", dataclasses.replace(draft, root=moved)
    yield from _changed_demand(draft, few)
    for collective in COLLECTIVES:
        if draft.asked is None and collective != draft.collective:
            yield "collective", dataclasses.replace(draft, collective=collective)
    for link in range(len(topology.source)):
        if topology.capacity[link] > 1:
            lower = topology.capacity - (np.arange(len(topology.source)) == link)
            thin = dataclasses.replace(topology, capacity=lower)
            yield "capacity lowered", dataclasses.replace(draft, topology=thin)
        rest = np.delete(np.arange(len(topology.source)), [link, int(topology.opposite[link])])
        kept = {column: getattr(topology, column)[rest] for column in LINK_COLUMNS}
        try:
            cut = dataclasses.replace(topology, **kept)
        except TopologyError:
            continue
        yield "link removed", dataclasses.replace(draft, topology=cut)


def _changed_demand(draft: Draft, few: Few) -> Iterator[tuple[str, Draft]]:
    if (asked := draft.asked) is None:
        return
    servers = draft.topology.servers.tolist()

    def with_blocks(changed: dict[int, Block]) -> Draft:
        blocks = tuple(changed.get(b, block) for b, block in enumerate(asked.blocks))
        return dataclasses.replace(draft, asked=dataclasses.replace(asked, blocks=blocks))

    for b, block in enumerate(asked.blocks):
        for field in ("contributors", "destinations"):
            for server in few(servers):
                changed = block._replace(**{field: getattr(block, field) ^ {server}})
                if has_to_do(changed):
                    more = server in getattr(changed, field)
                    yield f"{field}: one {'more' if more else 'less'}", with_blocks({b: changed})
        for c in few(range(b)):
            if asked.blocks[c] != block:
                yield "blocks exchanged", with_blocks({b: asked.blocks[c], c: block})
            moved = block._replace(job=asked.blocks[c].job)
            if moved != block:
                yield "block of another job", with_blocks({b: moved})
    for relay in few(sorted(asked.relays)):
        fewer = dataclasses.replace(asked, relays=asked.relays - {relay})
        yield "relay removed", dataclasses.replace(draft, asked=fewer)
    for p in few(range(len(draft.root))):
        for q in few(range(p)):
            renamed = {p: q, q: p}
            rows = [row._replace(piece=renamed.get(row.piece, row.piece)) for row in draft.rows]
            yield "pieces renamed", dataclasses.replace(draft, rows=tuple(rows))


def has_to_do(block: Block) -> bool:
    """Whether something is to be done for a block, so that a demand may have it."""
    sets = block.contributors, block.destinations
    return all(sets) and not (sets[0] == sets[1] and len(sets[0]) == 1)


def _with_rows(
    draft: Draft, changed: dict[int, Row], *, without: int | None = None, more: Iterable[Row] = ()
) -> Draft:
    rows = [changed.get(t, row) for t, row in enumerate(draft.rows) if t != without]
    return dataclasses.replace(draft, rows=(*rows, *more))


def _rounds(draft: Draft) -> int:
    return 1 + max(row.round for row in draft.rows)


@dataclasses.dataclass
class Tally:
    """What became of the mutants of one kind."""

    rejected: int = 0
    """Not valid, and rejected."""
    still_valid: int = 0
    """Another valid schedule, and accepted."""
    wrongly_accepted: list[Draft] = dataclasses.field(default_factory=list)
    wrongly_rejected: list[Draft] = dataclasses.field(default_factory=list)
    wrongly_explained: list[Draft] = dataclasses.field(default_factory=list)
    """Rejected, but for a rule that is not broken."""

    @property
    def tried(self) -> int:
        return self.rejected + self.still_valid + self.wrong

    @property
    def wrong(self) -> int:
        return len(self.wrongly_accepted) + len(self.wrongly_rejected) + len(self.wrongly_explained)

    def counts(self) -> dict[str, int]:
        """For results' files."""
        return {
            "tried": self.tried,
            "rejected": self.rejected,
            "still_valid": self.still_valid,
            "judged_wrongly": self.wrong,
        }


def judge(
    schedule: Schedule,
    *,
    most: int | None = None,
    seed: int = 0,
    aggregating_switches: bool = False,
) -> dict[str, Tally]:
    """Asks oracle and verifier about every mutant of a valid schedule.

    Args:
        schedule: a valid schedule.
        most: see `mutants`.
        seed: see `mutants`.
        aggregating_switches: whether switches may add.

    Returns:
        What became of them, by mutation.
    """
    tallies: dict[str, Tally] = {}
    original = Draft.of(schedule)
    for name, mutant in mutants(original, most, seed):
        tally = tallies.setdefault(name, Tally())
        pieces = _touched_pieces(original, mutant)
        judged(tally, mutant, pieces, aggregating_switches=aggregating_switches)
    return tallies


def judged(
    tally: Tally,
    draft: Draft,
    pieces: Collection[int] | None = None,
    *,
    aggregating_switches: bool = False,
) -> None:
    """Asks oracle and verifier about one schedule, and counts what they say.

    Args:
        tally: is added to.
        draft: the schedule.
        pieces: those that may be wrong; all if not given.
        aggregating_switches: whether switches may add.
    """
    broken = faults(draft, aggregating_switches=aggregating_switches, pieces=pieces)
    said = verdict_on(draft, aggregating_switches=aggregating_switches)
    if not broken and said is None:
        tally.still_valid += 1
    elif not broken:
        tally.wrongly_rejected.append(draft)
    elif said is None:
        tally.wrongly_accepted.append(draft)
    elif said not in (*broken, "columns"):
        tally.wrongly_explained.append(draft)
    else:
        tally.rejected += 1


def _touched_pieces(original: Draft, mutant: Draft) -> Collection[int]:
    """The pieces whose contributions the mutation may change; they do not depend on each other."""
    fields = "collective", "root", "asked"
    if any(getattr(original, field) != getattr(mutant, field) for field in fields):
        return range(len(original.root))
    pairs = zip_longest(original.rows, mutant.rows)
    return {row.piece for pair in pairs if pair[0] is not pair[1] for row in pair if row}


def verdict_on(mutant: Draft, *, aggregating_switches: bool = False) -> str | None:
    """The rule that the library finds broken; None where it accepts.

    ``columns`` where it will not even make a schedule of the columns.
    """
    try:
        schedule = mutant.schedule()
    except ScheduleError:
        return "columns"
    violation = verify(schedule, aggregating_switches=aggregating_switches).violation
    return violation and violation.kind


def table(tallies: dict[str, Tally]) -> str:
    """Mutation, mutants tried, rejected, still valid, and judged wrongly, as lines of text."""
    lines = [f"{'mutation':28}{'tried':>9}{'rejected':>10}{'still valid':>13}{'wrong':>7}"]
    for name, tally in [*sorted(tallies.items()), ("all", total(tallies.values()))]:
        lines.append(
            f"{name:28}{tally.tried:9,}{tally.rejected:10,}{tally.still_valid:13,}{tally.wrong:7,}"
        )
    return "\n".join(lines)


def total(tallies: Iterable[Tally]) -> Tally:
    """All tallies as one."""
    joined = Tally()
    for tally in tallies:
        joined.rejected += tally.rejected
        joined.still_valid += tally.still_valid
        joined.wrongly_accepted += tally.wrongly_accepted
        joined.wrongly_rejected += tally.wrongly_rejected
        joined.wrongly_explained += tally.wrongly_explained
    return joined
