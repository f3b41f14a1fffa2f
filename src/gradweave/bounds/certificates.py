"""Certificates: bounds in a form that a file can carry, and their statements once recounted.

A certificate is a JSON object of integers and exact fractions. It states the claim, identifies the
network and the demand by their hashes, and lists the sets of nodes or link lengths that prove it.
Before it leaves this module, each certificate is recounted by `gradweave_check`, which shares no
code with the bounds: a certificate claims exactly what the checker finds.
"""

import dataclasses
import functools
import json
import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

import gradweave_check as checker
from gradweave.bounds.bound import Bound, Certificate, ClosingCut, Cut, Distance, LateEntry, Ports
from gradweave.bounds.demands.demand_bound import DemandBound
from gradweave.bounds.explanations import explained
from gradweave.bounds.rounds.entry_sets import with_switches
from gradweave.bounds.scale import has_equal_links, has_equal_ports
from gradweave.bounds.seconds.duals import Crossing, Duals
from gradweave.bounds.seconds.latency import (
    MAX_DISTANCES,
    LatencyBound,
    Messages,
    latency_bound,
    message_times,
)
from gradweave.bounds.seconds.least_seconds import LeastSeconds, least_seconds
from gradweave.bounds.seconds.throughput import Bottleneck, throughput
from gradweave.bounds.seconds.time_expanded import TimeExpandedBound
from gradweave.errors import CertificateWarning, InvalidCertificateError
from gradweave.schedules.demand import Demand
from gradweave.schedules.file import demand_to_object, to_bytes
from gradweave.schedules.ready import ReadyAt, ready_times
from gradweave.schedules.schedule import DEMAND, Collective, Schedule
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.groups import nested_groups
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING

FORMAT, VERSION = "gradweave-certificate", 1
MAX_NODES = 512
"""Schedules are certified by default on networks of up to this many nodes; it takes about a
second."""
MOST_NODES = 2048
"""No bound is certified on networks of more nodes: the checker counts in Python's integers."""
MAX_ROOTS = 64
"""Number of servers up to which the distances to and from every server are tried."""
NO_TREES = checker.SEVERAL
"""The entry of `Certified.forbids` for sums of a piece that are completed at several servers."""

NEARLY = Fraction(1, 10**9)
"""Relative difference up to which two bounds count as equal."""

Step = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Certified:
    """A lower bound that its certificate proves, recounted in exact arithmetic."""

    certificate: Mapping[str, Any]
    """The certificate as stored in a file."""
    unit: str
    """``rounds`` or ``seconds``."""
    least: Fraction
    """The lower bound, in this unit."""
    forbids: frozenset[str]
    """Liberties that a schedule must not take for the bound to apply to it, in words."""
    pieces: tuple[int, ...]
    """Minimum number of pieces per server, or per block, for a bound on rounds."""
    reason: str
    """The reason in one sentence."""
    holds_for: str
    """The class that the bound holds for: ``every schedule``, or ``schedules that`` …"""

    @property
    def of_class(self) -> str:
        """`holds_for` as a phrase; empty if the bound holds for every schedule."""
        return f" for {self.holds_for}" if self.forbids else ""

    def __str__(self) -> str:
        return f"{self.reason}{self.of_class}"


def check_certificate(
    certificate: Mapping[str, Any], topology: Topology, demand: Demand | None = None
) -> Certified:
    """Recounts a certificate without trusting its claims.

    Args:
        certificate: from a file, or made here.
        topology: the network that the certificate must belong to.
        demand: the demand that it must belong to, if any.

    Raises:
        InvalidCertificateError: it belongs to another network or demand, proves less than it
            claims, or is of an unknown kind.

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
    forbids, pieces = frozenset(proof.forbids), tuple(proof.pieces)
    return Certified(certificate, proof.unit, proof.least, forbids, pieces, why, proof.holds_for())


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
        claim: everything but the value it proves: the unit, and the collective if there is no
            demand.
        steps: steps of the proof, as stored in a file.

    Raises:
        InvalidCertificateError: `gradweave_check` does not accept the steps.
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
    try:
        proof = checker.Proof(certificate, network, asked)
    except (checker.Wrong, RecursionError, *checker.BROKEN) as error:
        kinds = ", ".join(step["kind"] for step in steps)
        why = f"a certificate ({kinds}) could not be recounted: {error}"
        raise InvalidCertificateError(why) from error
    certificate["claim"] |= {"least": str(proof.least), "holds_unless": sorted(proof.forbids)}
    return _recounted(certificate, proof, topology, demand)


def _strongest(
    topology: Topology,
    demand: Demand | None,
    tried: Sequence[tuple[dict[str, Any], Step]],
    liberties: frozenset[str] = frozenset(),
) -> Certified:
    """The certificate with the strongest bound, from claims with one step each.

    If some of the bounds hold for schedules with the given liberties, the others are left out.
    Among equally strong bounds, the bound for the widest class counts.

    Raises:
        InvalidCertificateError: none can be recounted.
    """
    found = recounted_of_each(topology, demand, tried)
    found = [one for one in found if not one.forbids & liberties] or found
    most = max(one.least for one in found)
    near = (one for one in found if one.least >= most * (1 - NEARLY))
    return min(near, key=lambda one: len(one.forbids))


def recounted_of_each(
    topology: Topology,
    demand: Demand | None,
    tried: Sequence[tuple[dict[str, Any], Step]],
) -> list[Certified]:
    """Certificates of claims with one step each, and a warning for any that cannot be recounted.

    Args:
        topology: the network.
        demand: the demand, if any.
        tried: claims without their values, and their steps.

    Raises:
        InvalidCertificateError: none can be recounted.
    """
    found, failed = [], []
    for claim, step in tried:
        try:
            found.append(certified_by(topology, demand, claim, [step]))
        except InvalidCertificateError as error:
            failed.append(error)
    if not found:
        raise failed[0]
    for error in failed:
        warnings.warn(f"{error}; a weaker one counts", CertificateWarning, stacklevel=3)
    return found


def certificates_in(schedule: Schedule) -> list[tuple[Certified | str, list[str]]]:
    """The recounted bounds of the certificates in a schedule's file.

    Args:
        schedule: a valid schedule, as read from the file.

    Returns:
        For each certificate, the bound or the reason why it is refused; and everything the
        schedule does that the bound excludes (an empty list if the bound applies).
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
    """The schedule in the form that the checker takes; the checker replays it."""
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
    """The certificate of a bound on rounds that holds for any choice of trees.

    Args:
        topology: the network, of at most `MOST_NODES` nodes.
        bound: of `free_trees`, with the same arguments.
        collective: a stage, or both.
        pieces_per_server: pieces rooted at each server.

    Returns:
        None for a bound that only a search proves, for bounds of given trees and for networks of
        more than `MOST_NODES` nodes.

    Raises:
        InvalidCertificateError: it could not be recounted.
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
    """A stage's certificate as an object, or None if a person could not recount it."""
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
    """The strongest certificate of a time, from cuts, duals, messages and, if given, time slots.

    Args:
        topology: the network.
        gradient_bytes: size of the whole gradient, above 0.
        collective: a stage, with equal parts, or both, overlapping.
        least: the bound for trees, if already known; otherwise it is computed if links are unequal.
        trees: whether each part is summed at a single server.
        ready_at_s: [N] seconds at which each server's gradient is ready, in order of id.
        expanded: a bound from time slots, for the same size and collective, to try as well.

    Raises:
        InvalidCertificateError: none could be recounted.
    """
    tried = steps_in_seconds(
        topology, gradient_bytes, collective, least, trees, ready_at_s, expanded
    )
    return _strongest(topology, None, tried)


def steps_in_seconds(
    topology: Topology,
    gradient_bytes: float,
    collective: Collective,
    least: LeastSeconds | None = None,
    trees: bool = True,
    ready_at_s: ReadyAt | None = None,
    expanded: TimeExpandedBound | None = None,
) -> list[tuple[dict[str, Any], Step]]:
    """Claims about time, each with a step that may prove it; arguments as for `certify_seconds`."""
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
        alike = has_equal_links(topology) and has_equal_ports(topology)  # cuts prove as much
        if trees and (least is not None or ready.any() or not alike):
            least = least or least_seconds(topology, gradient_bytes, ready_at_s=ready)
            tried.append(_priced_step(topology, least.duals))
    if (trees or collective != "all_reduce") and topology.num_servers <= MAX_ROOTS:
        tried.append({"kind": "root", "stage": collective})
    if trees and expanded is not None and expanded.certificate is not None:
        tried.append(_slots_step(collective, expanded))
    return [(claim, step) for step in tried]


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
    """Steps from the farthest server, or to it, and from the server with the narrowest links."""
    away = message_times(topology) + ready[:, None]
    leaving = stage != "reduce_scatter"
    ends = topology.source if leaving else topology.target
    rate = np.bincount(ends, topology.bandwidth_bytes_per_s, topology.num_nodes)
    farthest = away if leaving else away.T
    ranks = {int(np.argmax(farthest.max(axis=1))), int(np.argmin(rate[topology.servers]))}
    steps = []
    for rank in sorted(ranks):
        pair = (rank, int(np.argmax(farthest[rank])))[:: 1 if leaving else -1]
        far = _far_message(topology, *topology.servers[list(pair)].tolist())
        steps.append(_reach_of(topology, stage, rank, leaving))
        steps += [_reach_of(topology, stage, rank, leaving, **far)] if far else []
    return steps


def _reach_of(topology: Topology, stage: str, rank: int, leaving: bool, **found: float) -> Step:
    """A proof step for one server; in a single stage, its block is the one rooted at it."""
    block = 0 if stage == "all_reduce" else rank
    return _reach_step(stage, int(topology.servers[rank]), block, leaving=leaving, **found)


def _message_steps(topology: Topology, stage: str, bound: LatencyBound) -> list[Step]:
    """Steps that prove a bound on messages without bytes."""
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
    """Distances around a server beyond which sets of far servers are tried."""
    model = Messages.of(topology)
    times = model.message[rank] if leaving else model.message[:, rank]
    sets = model.sets_around(rank, not leaving)
    return [float(times[chosen].min()) * (1 - ROUNDING) for chosen in sets if not chosen.all()]


def _reached(topology: Topology, rank: int, bound: LatencyBound) -> dict[str, float]:
    """The time of a reach without its bytes, and the distance from which its servers count."""
    model, leaving = Messages.of(topology), bound.kind == "reach"
    (alone,) = model.reach(gathering=not leaving, servers=[rank])
    times = model.message[rank] if leaving else model.message[:, rank]
    beyond = [0.0, *_beyond(topology, rank, leaving)]
    far = [time for time in beyond if (np.delete(times, rank) >= time).sum() == alone.others]
    return {"seconds": alone.seconds * (1 - ROUNDING), "beyond": far[0] if far else 0.0}


def _priced_step(topology: Topology, duals: Duals) -> Step:
    """Sets of nodes with their prices in the linear program; link lengths if no server is late."""
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
    """Prices in slots; a link whose latency differs between a switch's uses has the smallest."""
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
    """The last server's whole gradient leaves it once it is ready, and enters another server."""
    into = np.bincount(topology.target, topology.bandwidth_bytes_per_s, topology.num_nodes)
    into = np.where(topology.is_server, into, np.inf)
    into[last] = np.inf
    sides = ((last, True), (int(np.argmin(into)), False))
    return [
        {"kind": "cut", "stage": "all_reduce", "servers": [server], "switches": [], "leaving": out}
        for server, out in sides
    ]


def certify_demand(
    topology: Topology,
    demand: Demand,
    bound: DemandBound,
    *,
    liberties: frozenset[str] = frozenset(),
) -> Certified:
    """The certificate of a bound for a demand, by link lengths or a distance.

    Args:
        topology: the network.
        demand: the blocks to sum and move.
        bound: from `demand_bound`, or from a strategy.
        liberties: members of `Certified.forbids`; a bound that allows them is preferred.

    Raises:
        InvalidCertificateError: none could be recounted.
    """
    tried = steps_of_demand(topology, demand, bound)
    return _strongest(topology, demand, tried, liberties)


def steps_of_demand(
    topology: Topology, demand: Demand, bound: DemandBound
) -> list[tuple[dict[str, Any], Step]]:
    """Claims about a demand, each with a possible proof step; arguments as for `certify_demand`."""
    claim: dict[str, Any] = {"unit": "seconds", "collective": DEMAND}
    source, target = bound.farthest
    block, far = _block_between(demand, source, target), _far_message(topology, source, target)
    steps = [_reach_step(DEMAND, source, block)]
    steps += [_reach_step(DEMAND, source, block, **far)] if far else []
    if bound.ports is not None:
        server, leaving = bound.ports.servers[0], bound.ports.kind == "reach"
        found = _reached(topology, int(topology.rank[server]), bound.ports)
        steps += [
            _reach_step(DEMAND, server, block, leaving=leaving, **found)
            for block in _blocks_rooted(demand, server, leaving, topology.num_servers)
        ]
    lengths = {"kind": "lengths", "stage": DEMAND, "lengths": bound.lengths.length.tolist()}
    since = {"since_s": str(Fraction(bound.since_s))} if bound.since_s else {}
    return [*((claim, step) for step in steps), (claim | since, lengths)]


def _far_message(topology: Topology, source: int, target: int) -> dict[str, Any]:
    """Fields of a step with the minimum message time; empty if all links have the same overhead."""
    if not np.ptp(topology.overhead_s):
        return {}
    ends = topology.rank[source], topology.rank[target]
    message_s = float(message_times(topology)[ends]) * (1 - ROUNDING)
    return {"seconds": message_s, "beyond": message_s}


def _block_between(demand: Demand, source: int, target: int) -> int:
    """The last block to be ready of those from one server to another."""
    given, wanted = demand.contributors, demand.destinations
    blocks = [b for b in range(len(demand)) if source in given[b] and target in wanted[b]]
    return max(blocks, key=lambda b: float(demand.ready_at_s[demand.job[b]]))


def _blocks_rooted(demand: Demand, server: int, leaving: bool, servers: int) -> list[int]:
    """The largest block that goes from a server to all others, or from all others to it."""
    one, others = demand.contributors, demand.destinations
    if not leaving:
        one, others = others, one
    blocks = [
        b
        for b in np.flatnonzero((one.sizes == 1) & (others.sizes >= servers - 1)).tolist()
        if one[b][0] == server and len(np.union1d(one[b], others[b])) == servers
    ]
    return sorted(blocks, key=lambda b: int(demand.bytes[b]))[-1:]
