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
from gradweave.bounds.entry_sets import with_switches
from gradweave.bounds.explanations import explained
from gradweave.bounds.latency import message_times
from gradweave.bounds.least_seconds import LeastSeconds, least_seconds
from gradweave.bounds.scale import has_equal_links, has_equal_ports
from gradweave.bounds.throughput import Bottleneck, throughput
from gradweave.errors import InvalidCertificateError
from gradweave.schedule.demand import Demand
from gradweave.schedule.file import demand_to_object, to_bytes
from gradweave.schedule.ready import ReadyAt, ready_times
from gradweave.schedule.schedule import DEMAND, Collective, Schedule
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.groups import nested_groups
from gradweave.topology.topology import Topology

FORMAT, VERSION = "gradweave-certificate", 1
MAX_NODES = 512
"""Nodes up to which bounds are certified: what checks them counts in Python's integers."""
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
    try:
        name = DEMAND if demand is not None else certificate["claim"]["collective"]
        proof = checker.Proof(certificate, *_as_checked(topology, name, demand))
    except (checker.Wrong, RecursionError, *checker.BROKEN) as error:
        raise InvalidCertificateError(f"certificate: {error}") from error
    return _recounted(certificate, proof, topology, demand)


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


def _certified(
    topology: Topology, demand: Demand | None, claim: dict[str, Any], steps: Sequence[Step]
) -> Certified:
    """The certificate that claims what its steps prove."""
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
    plan = None
    for one in schedule.certificates:
        try:
            proof = check_certificate(one, schedule.topology, schedule.demand)
        except InvalidCertificateError as error:
            found.append((str(error), []))
            continue
        if plan is None:
            plan = _plan(schedule)
        few = proof.unit == "rounds" and any(
            least > rooted for rooted, least in zip(plan.pieces, proof.pieces, strict=True)
        )
        name = DEMAND if schedule.demand is not None else schedule.collective
        other = ["another collective"] * (proof.certificate["claim"]["collective"] != name)
        limits = sorted(proof.forbids & plan.liberties) + [checker.FEWER] * few + other
        found.append((proof, limits))
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
        topology: the network, of at most `MAX_NODES` nodes.
        bound: of `free_trees`, with the same arguments.
        collective: a stage, or both.
        pieces_per_server: pieces of which each server is the root.

    Returns:
        None for what a search alone says, for bounds of given trees and for larger networks.
    """
    if topology.num_nodes > MAX_NODES:
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
    found = _certified(topology, None, claim, [step for step in steps if step is not None])
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


def _set(one: Cut | LateEntry | Bottleneck) -> Step:
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
) -> Certified:
    """The strongest certificate for a time, of the tightest cut, lengths of links and distance.

    Args:
        topology: the network.
        gradient_bytes: size of the whole gradient, above 0.
        collective: a stage, with equal parts, or both, overlapping.
        least: the bound for trees, if it is known; if not, it is found where links are unequal.
        trees: whether each part is summed at one server alone.
        ready_at_s: [N] seconds at which each server's own gradient is ready, in order of id.
    """
    ready = ready_times(topology, ready_at_s)
    claim: dict[str, Any] = {"unit": "seconds", "collective": collective}
    claim["bytes"] = str(Fraction(gradient_bytes))
    if ready.any() and collective == "all_reduce":
        claim["ready_at_s"] = [str(Fraction(time)) for time in ready.tolist()]
    best = throughput(topology, collective, overlap=collective == "all_reduce")
    tried = [_bottleneck_step(topology, collective, one) for one in best.bottlenecks]
    tried += _distance_steps(topology, collective, ready)
    if collective == "all_reduce":
        if ready.any():
            tried += _after_the_last(topology, int(topology.servers[np.argmax(ready)]))
        if trees and topology.num_servers <= MAX_ROOTS:
            tried.append({"kind": "root", "stage": collective})
        alike = has_equal_links(topology) and has_equal_ports(topology)  # cuts say as much
        if trees and not (least is None and alike):
            least = least or least_seconds(topology, gradient_bytes, collective)
            prices = least.duals.link_duals.max(axis=0)
            tried.append({"kind": "lengths", "stage": collective, "lengths": prices.tolist()})
    found = [_certified(topology, None, claim, [step]) for step in tried]
    return max(found, key=lambda one: one.least)


def _bottleneck_step(topology: Topology, stage: str, one: Bottleneck) -> Step:
    if one.kind == "cut":
        return {"kind": "cut", "stage": stage, **_set(one), "leaving": one.leaving}
    groups = topology.servers[:, None].tolist()
    for level in nested_groups(topology) if one.kind == "groups" else ():
        if level.count == one.groups:
            groups = [np.flatnonzero(level.group == g).tolist() for g in range(level.count)]
    return _groups(stage, groups, one.leaving)


def _distance_steps(topology: Topology, stage: str, ready: np.ndarray) -> list[Step]:
    """From the farthest server, and from the one with the narrowest links."""
    away = message_times(topology) + ready[:, None]
    rate = np.bincount(topology.source, topology.bandwidth_bytes_per_s, topology.num_nodes)
    narrowest = int(np.argmin(rate[topology.servers]))
    pairs = [divmod(int(away.argmax()), len(away)), (narrowest, int(away[narrowest].argmax()))]
    ends = [[int(topology.servers[rank]) for rank in pair] for pair in pairs if len({*pair}) == 2]
    return [{"kind": "distance", "stage": stage, "source": a, "target": b} for a, b in ends]


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
    far = {"kind": "distance", "stage": DEMAND, "source": source, "target": target}
    lengths = {"kind": "lengths", "stage": DEMAND, "lengths": bound.lengths.length.tolist()}
    since = {"since_s": str(Fraction(bound.since_s))} if bound.since_s else {}
    found = [
        _certified(topology, demand, claim, [far]),
        _certified(topology, demand, claim | since, [lengths]),
    ]
    return max(found, key=lambda one: one.least)
