"""Bounds as certificates that a file can carry, and what those say once they are recounted.

A certificate is a JSON object in integers and exact fractions: what is claimed, of which network
and demand, by their hashes, and the sets of nodes or lengths of links that prove it. Each is
recounted by `gradweave_check`, which shares no code with the bounds, before it leaves this module:
what it claims is what that one finds.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

import gradweave_check as checker
from gradweave.bounds.bound import Bound, Certificate, ClosingCut, Cut, Distance, LateEntry, Ports
from gradweave.bounds.demands import DemandBound
from gradweave.bounds.duals import Crossing, Duals
from gradweave.bounds.entry_sets import with_switches
from gradweave.bounds.explanations import explained
from gradweave.bounds.latency import (
    MAX_DISTANCES,
    LatencyBound,
    Messages,
    latency_bound,
    message_times,
)
from gradweave.bounds.least_seconds import LeastSeconds, least_seconds
from gradweave.bounds.scale import has_equal_links, has_equal_ports
from gradweave.bounds.throughput import Bottleneck, throughput
from gradweave.bounds.time_expanded import TimeExpandedBound
from gradweave.errors import InvalidCertificateError
from gradweave.schedule.demand import Demand
from gradweave.schedule.file import demand_to_object, to_bytes
from gradweave.schedule.ready import ReadyAt, ready_times
from gradweave.schedule.schedule import DEMAND, Collective, Schedule
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.groups import nested_groups
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING

FORMAT, VERSION = "gradweave-certificate", 1
MAX_NODES = 512
"""Nodes up to which schedules' bounds are certified along with them: within a second or so."""
MOST_NODES = 2048
"""Nodes up to which bounds are certified at all: what checks them counts in Python's integers."""
MAX_ROOTS = 64
"""Servers up to which the distances to and from each of them are looked at."""
NO_TREES = checker.SEVERAL
"""Among `Certified.forbids`: that sums of a piece are completed at several servers."""

Step = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Certified:
    """A lower bound that its certificate proves, recounted in exact arithmetic."""

    certificate: Mapping[str, Any]
    """As a file has it."""
    unit: str
    """``rounds`` or ``seconds``."""
    least: Fraction
    """Of these."""
    forbids: frozenset[str]
    """What schedules may not do that the bound holds for, in words."""
    pieces: tuple[int, ...]
    """That each server roots at least, or that each block has, for a bound on rounds."""
    reason: str
    """Why, in one sentence."""

    def __str__(self) -> str:
        return self.reason


def check_certificate(
    certificate: Mapping[str, Any], topology: Topology, demand: Demand | None = None
) -> Certified:
    """Recounts a certificate; what it says of itself is not believed.

    Args:
        certificate: of a file, or made here.
        topology: the network that it must be of.
        demand: the demand that it must be of, if any.

    Raises:
        InvalidCertificateError: it is of another network or demand, proves less than it claims, or
            is of no kind that is known.

    >>> import gradweave as gw
    >>> net = gw.topology.bcube(n=3, k=1)
    >>> certificate = certify_rounds(net, gw.bounds.free_trees(net), "all_reduce").certificate
    >>> check_certificate(certificate, net).least
    Fraction(8, 1)
    """
    return _recounted(certificate, _proof(certificate, topology, demand), topology, demand)


def _proof(
    certificate: Mapping[str, Any], topology: Topology, demand: Demand | None
) -> checker.Proof:
    try:
        name = DEMAND if demand is not None else certificate["claim"]["collective"]
        return checker.Proof(certificate, *_as_checked(topology, name, demand))
    except (checker.Wrong, RecursionError, *checker.BROKEN) as error:
        raise InvalidCertificateError(f"certificate: {error}") from error


def _recounted(
    certificate: Mapping[str, Any], proof: Any, topology: Topology, demand: Demand | None
) -> Certified:
    why = explained(certificate, proof.least, topology, demand)
    return Certified(
        certificate, proof.unit, proof.least, frozenset(proof.forbids), tuple(proof.pieces), why
    )


@functools.lru_cache(maxsize=8)
def _network(topology: Topology) -> checker.Network:
    return checker.Network(topology_to_object(topology))


def _as_checked(topology: Topology, collective: str, demand: Demand | None) -> tuple[Any, Any]:
    network = _network(topology)
    asked = None if demand is None else demand_to_object(demand)
    return network, checker.Asked(collective, asked, network)


def certified_by(
    topology: Topology, demand: Demand | None, claim: dict[str, Any], steps: Sequence[Step]
) -> Certified:
    """The certificate that claims what its steps prove.

    Args:
        topology: the network.
        demand: the demand, if any.
        claim: without what it proves: the unit, and the collective where there is no demand.
        steps: of the proof, as a file has them.
    """
    collective = DEMAND if demand is not None else claim["collective"]
    network, asked = _as_checked(topology, collective, demand)
    certificate = {
        "format": FORMAT,
        "version": VERSION,
        "network": network.hash,
        "claim": {**claim, "collective": collective, "least": "0"},
        "proof": list(steps),
    }
    if demand is not None:
        certificate["demand"] = asked.hash
    proof = checker.Proof(certificate, network, asked)
    certificate["claim"]["least"] = str(proof.least)
    return _recounted(certificate, proof, topology, demand)


def certificates_in(schedule: Schedule) -> list[tuple[Certified | str, list[str]]]:
    """What the certificates of a schedule's file say once they are recounted.

    Args:
        schedule: a valid schedule, as it was read.

    Returns:
        Of each the bound, or why it is refused; and what the schedule does that the bound does not
        hold for: nothing, if it does.
    """
    if not schedule.certificates:
        return []
    found: list[tuple[Certified | str, list[str]]] = []
    plan, name = None, DEMAND if schedule.demand is not None else schedule.collective
    for one in schedule.certificates:
        try:
            proof = _proof(one, schedule.topology, schedule.demand)
        except InvalidCertificateError as error:
            found.append((str(error), []))
            continue
        plan = plan or _plan(schedule)
        other = ["another collective"] * (proof.name != name)
        said = _recounted(one, proof, schedule.topology, schedule.demand)
        found.append((said, proof.limits(plan) + other))
    return found


def _plan(schedule: Schedule) -> Any:
    """The schedule as the checker takes it, which plays it once more."""
    content = json.loads(to_bytes(schedule.replace(certificates=())))
    network = _network(schedule.topology)
    asked = checker.Asked(content["collective"], content.get("demand"), network)
    return checker.Plan(content, network, asked, True)


def certify_rounds(
    topology: Topology,
    bound: Bound,
    collective: Collective,
    *,
    pieces_per_server: int = 1,
) -> Certified | None:
    """The certificate of a bound on rounds that holds whatever the trees.

    Args:
        topology: the network, of at most `MOST_NODES` nodes.
        bound: of `free_trees`, with the same arguments.
        collective: a stage, or both.
        pieces_per_server: pieces of which each server is the root.

    Returns:
        None for what a search alone says, for bounds of given trees and for larger networks.
    """
    if topology.num_nodes > MOST_NODES:
        return None
    stages: tuple[str, ...] = (collective,)
    if collective == "all_reduce" and len(bound.certificates) == 2:
        stages = ("reduce_scatter", "all_gather")
    steps = [
        _step(topology, stage, one) for stage, one in zip(stages, bound.certificates, strict=True)
    ]
    if None in steps:
        return None
    claim: dict[str, Any] = {"unit": "rounds", "collective": collective}
    if len(stages) == 1 and collective == "all_reduce":
        claim["overlap"] = True
    if pieces_per_server != 1:
        claim["pieces"] = [pieces_per_server] * topology.num_servers
    found = certified_by(topology, None, claim, [step for step in steps if step is not None])
    return found if found.least >= bound.rounds else None


def _step(topology: Topology, stage: str, one: Certificate) -> Step | None:
    """A stage's certificate as an object; None for one that says less than a person can count."""
    if isinstance(one, Cut):
        return {"kind": "cut", "stage": stage, **_set(one), "leaving": one.leaving}
    if isinstance(one, Distance):
        return {"kind": "depth", "stage": stage, "source": one.source, "target": one.target}
    if isinstance(one, LateEntry):
        step = {"kind": "late_entry", "stage": stage, **_set(one)}
        step |= {"first_rounds": one.first_rounds, "last_rounds": one.last_rounds}
        if one.last_rounds:
            members = np.isin(topology.servers, one.reach)[None]
            capacity = topology.capacity[topology.opposite] if one.leaving else topology.capacity
            inside = np.flatnonzero(with_switches(topology, capacity, members)[0])
            switches = one.switches if one.reach == one.servers else inside.tolist()
            step |= {
                "reach": list(one.reach),
                "reach_switches": [node for node in switches if not topology.is_server[node]],
            }
        return step
    if isinstance(one, ClosingCut):
        return {
            "kind": "closing_cut",
            "stage": stage,
            "target": one.target,
            "servers": [list(each) for each in one.servers],
            "switches": [list(each) for each in one.switches],
        }
    if isinstance(one, Ports):
        leaving = int(topology.capacity[topology.is_server[topology.source]].sum())
        return _groups(stage, topology.servers[:, None].tolist(), leaving == one.capacity)
    return None


def _set(one: Cut | LateEntry | Bottleneck | Crossing) -> Step:
    return {"servers": list(one.servers), "switches": list(one.switches)}


def _groups(stage: str, groups: list[list[int]], leaving: bool) -> Step:
    return {"kind": "groups", "stage": stage, "groups": groups, "leaving": leaving}


def certify_seconds(
    topology: Topology,
    gradient_bytes: float,
    collective: Collective = "all_reduce",
    *,
    least: LeastSeconds | None = None,
    trees: bool = True,
    ready_at_s: ReadyAt | None = None,
    expanded: TimeExpandedBound | None = None,
) -> Certified:
    """The strongest certificate for a time, of cuts, duals, messages and, if given, slots of time.

    Args:
        topology: the network.
        gradient_bytes: size of the whole gradient, above 0.
        collective: a stage, with equal parts, or both, overlapping.
        least: the bound for trees, if it is known; if not, it is found where links are unequal.
        trees: whether each part is summed at one server alone.
        ready_at_s: [N] seconds at which each server's own gradient is ready, in order of id.
        expanded: of the same size and collective, from slots of time, whose prices count too.
    """
    ready = ready_times(topology, ready_at_s)
    claim: dict[str, Any] = {"unit": "seconds", "collective": collective}
    claim["bytes"] = str(Fraction(gradient_bytes))
    if ready.any() and collective == "all_reduce":
        claim["ready_at_s"] = [str(Fraction(time)) for time in ready.tolist()]
    best = throughput(topology, collective, overlap=collective == "all_reduce")
    tried = [_bottleneck_step(topology, collective, one) for one in best.bottlenecks]
    tried += _distance_steps(topology, collective, ready)
    if topology.num_servers <= MAX_DISTANCES:
        tried += _message_steps(topology, collective, latency_bound(topology, collective))
    if collective == "all_reduce":
        if ready.any():
            tried += _after_the_last(topology, int(topology.servers[np.argmax(ready)]))
        if trees and topology.num_servers <= MAX_ROOTS:
            tried.append({"kind": "root", "stage": collective})
        alike = has_equal_links(topology) and has_equal_ports(topology)  # cuts say as much
        if trees and (least is not None or ready.any() or not alike):
            least = least or least_seconds(topology, gradient_bytes, ready_at_s=ready)
            tried.append(_priced_step(topology, least.duals))
    if trees and expanded is not None and expanded.certificate is not None:
        tried.append(_slots_step(collective, expanded))
    found = [certified_by(topology, None, claim, [step]) for step in tried]
    return max(found, key=lambda one: one.least)


def _bottleneck_step(topology: Topology, stage: str, one: Bottleneck) -> Step:
    if one.kind == "cut":
        return {"kind": "cut", "stage": stage, **_set(one), "leaving": one.leaving}
    groups = topology.servers[:, None].tolist()
    for level in nested_groups(topology) if one.kind == "groups" else ():
        if level.count == one.groups:
            groups = [np.flatnonzero(level.group == g).tolist() for g in range(level.count)]
    return _groups(stage, groups, one.leaving)


def _reach_step(
    stage: str,
    server: int,
    block: int,
    *,
    leaving: bool = True,
    seconds: float = 0.0,
    beyond: float = 0.0,
) -> Step:
    return {
        "kind": "reach",
        "stage": stage,
        "server": server,
        "leaving": leaving,
        "block": block,
        "seconds": str(Fraction(seconds)),
        "beyond_s": str(Fraction(beyond)),
    }


def _distance_steps(topology: Topology, stage: str, ready: np.ndarray) -> list[Step]:
    """From the farthest server, or to it, and from the one with the narrowest links."""
    away = message_times(topology) + ready[:, None]
    leaving = stage != "reduce_scatter"
    ends = topology.source if leaving else topology.target
    rate = np.bincount(ends, topology.bandwidth_bytes_per_s, topology.num_nodes)
    farthest = away.max(axis=1 if leaving else 0)
    ranks = {int(np.argmax(farthest)), int(np.argmin(rate[topology.servers]))}
    return [_reach_of(topology, stage, rank, leaving) for rank in sorted(ranks)]


def _reach_of(topology: Topology, stage: str, rank: int, leaving: bool, **found: float) -> Step:
    """Of a server of a collective among all; each block of a stage has one of them as its root."""
    block = 0 if stage == "all_reduce" else rank
    return _reach_step(stage, int(topology.servers[rank]), block, leaving=leaving, **found)


def _message_steps(topology: Topology, stage: str, bound: LatencyBound) -> list[Step]:
    """What proves a bound of messages without bytes."""
    if bound.kind in ("reach", "gather"):
        rank = int(topology.rank[bound.servers[0]])
        leaving = bound.kind == "reach"
        return [_reach_of(topology, stage, rank, leaving, **_reached(topology, rank, bound))]
    if bound.kind == "relay":
        return [{"kind": "relay", "stage": stage, "server": bound.servers[0]}]
    if bound.kind == "meeting":
        beyond = [_beyond(topology, rank, False) for rank in range(topology.num_servers)]
        texts = [[str(Fraction(time)) for time in times] for times in beyond]
        time = str(Fraction(bound.seconds))
        return [{"kind": "meeting", "stage": stage, "seconds": time, "beyond_s": texts}]
    return []


def _beyond(topology: Topology, rank: int, leaving: bool) -> list[float]:
    """From which distances on sets of far servers are looked at, around one."""
    model = Messages.of(topology)
    times = model.message[rank] if leaving else model.message[:, rank]
    sets = model.sets_around(rank, not leaving)
    return [float(times[chosen].min()) * (1 - ROUNDING) for chosen in sets if not chosen.all()]


def _reached(topology: Topology, rank: int, bound: LatencyBound) -> dict[str, float]:
    """The time of a reach without its bytes, and the distance of the set that it speaks of."""
    model, leaving = Messages.of(topology), bound.kind == "reach"
    (alone,) = model.reach(gathering=not leaving, servers=[rank])
    times = model.message[rank] if leaving else model.message[:, rank]
    beyond = [0.0, *_beyond(topology, rank, leaving)]
    far = [time for time in beyond if (np.delete(times, rank) >= time).sum() == alone.others]
    return {"seconds": alone.seconds * (1 - ROUNDING), "beyond": far[0] if far else 0.0}


def _priced_step(topology: Topology, duals: Duals) -> Step:
    """Sets of nodes as the linear program prices them; where all are ready at once, their links."""
    if not duals.ready_at_s:
        lengths = duals.link_duals.max(axis=0).tolist()
        return {"kind": "lengths", "stage": "all_reduce", "lengths": lengths}
    sets = [
        {
            "stage": one.stage,
            **_set(one),
            "price": int(one.dual),
            "since_s": str(Fraction(one.since_s)),
        }
        for one in duals.crossings
    ]
    tolls = [
        {"stage": one.stage, "switch": one.switch, "price": int(one.dual)} for one in duals.tolls
    ]
    return {"kind": "crossings", "stage": "all_reduce", "sets": sets, "tolls": tolls}


def _slots_step(stage: str, bound: TimeExpandedBound) -> Step:
    """Prices in slots; a link that a switch sees with several latencies has the least of them."""
    assert bound.certificate is not None
    slots = bound.certificate.slots
    prices, tolls = bound.certificate.in_integers()
    arcs, servers = slots.arcs, slots.topology.servers
    rows: list[list[int]] = []
    for number, each in enumerate(prices):
        of_link = np.full((slots.count, len(slots.topology.source), len(servers)), 1 << 62)
        for arc, link in enumerate(arcs.link.tolist()):
            np.minimum(of_link[:, link], each[:, arc], out=of_link[:, link])
        for slot, link, rank in zip(*(part.tolist() for part in np.nonzero(of_link)), strict=True):
            price = int(of_link[slot, link, rank])
            rows.append([number, slot, link, int(servers[rank]), price])
    single = np.flatnonzero(arcs.level == 0)
    charges = [
        [number, int(slot), int(arcs.node[single[at]]), int(each[slot, single[at]])]
        for number, each in enumerate(tolls)
        for slot, at in zip(*np.nonzero(each[:, single]), strict=True)
    ]
    return {
        "kind": "slots",
        "stage": stage,
        "slots": slots.count,
        "length_s": str((slots.longest or Fraction(bound.seconds)) * (1 - Fraction(1, 10**12))),
        "prices": rows,
        "tolls": charges,
    }


def _after_the_last(topology: Topology, last: int) -> list[Step]:
    """The whole gradient of the last server leaves it once it is ready, and enters another one."""
    into = np.bincount(topology.target, topology.bandwidth_bytes_per_s, topology.num_nodes)
    into = np.where(topology.is_server, into, np.inf)
    into[last] = np.inf
    sides = ((last, True), (int(np.argmin(into)), False))
    return [
        {"kind": "cut", "stage": "all_reduce", "servers": [server], "switches": [], "leaving": out}
        for server, out in sides
    ]


def certify_demand(topology: Topology, demand: Demand, bound: DemandBound) -> Certified:
    """The certificate of a demand's bound: lengths of links, or a distance.

    Args:
        topology: the network.
        demand: what is to be summed and moved.
        bound: of `demand_bound`, or a strategy.
    """
    claim: dict[str, Any] = {"unit": "seconds", "collective": DEMAND}
    source, target = bound.farthest
    steps = [_reach_step(DEMAND, source, _block_between(demand, source, target))]
    if bound.ports is not None:
        server, leaving = bound.ports.servers[0], bound.ports.kind == "reach"
        found = _reached(topology, int(topology.rank[server]), bound.ports)
        steps += [
            _reach_step(DEMAND, server, block, leaving=leaving, **found)
            for block in _blocks_rooted(demand, server, leaving, topology.num_servers)
        ]
    lengths = {"kind": "lengths", "stage": DEMAND, "lengths": bound.lengths.length.tolist()}
    since = {"since_s": str(Fraction(bound.since_s))} if bound.since_s else {}
    found = [certified_by(topology, demand, claim, [step]) for step in steps]
    found.append(certified_by(topology, demand, claim | since, [lengths]))
    return max(found, key=lambda one: one.least)


def _block_between(demand: Demand, source: int, target: int) -> int:
    """The last block to be ready that a server contributes to and another one is to have."""
    given, wanted = demand.contributors, demand.destinations
    blocks = [b for b in range(len(demand)) if source in given[b] and target in wanted[b]]
    return max(blocks, key=lambda b: float(demand.ready_at_s[demand.job[b]]))


def _blocks_rooted(demand: Demand, server: int, leaving: bool, servers: int) -> list[int]:
    """The largest block that goes from a server to all others, or from them to it."""
    one, others = demand.contributors, demand.destinations
    if not leaving:
        one, others = others, one
    blocks = [
        b
        for b in np.flatnonzero((one.sizes == 1) & (others.sizes >= servers - 1)).tolist()
        if one[b][0] == server
    ]
    return sorted(blocks, key=lambda b: int(demand.bytes[b]))[-1:]
