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
from gradweave.bounds.explanations import explained
from gradweave.bounds.rounds.entry_sets import with_switches
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.bounds.steps import Step, groups_step, set_of
from gradweave.errors import CertificateWarning, InvalidCertificateError
from gradweave.schedules.demand import Demand
from gradweave.schedules.file import demand_to_object, to_bytes
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import DEMAND, Collective, Schedule
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology

FORMAT, VERSION = "gradweave-certificate", 1
MAX_NODES = 512
"""Schedules are certified by default on networks of up to this many nodes; it takes about a
second."""
MOST_NODES = 2048
"""No bound is certified on networks of more nodes: the checker counts in Python's integers."""
NO_TREES = checker.SEVERAL
"""The entry of `Certified.forbids` for sums of a piece that are completed at several servers."""

NEARLY = Fraction(1, 10**9)
"""Relative difference up to which two bounds count as equal."""


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
    certificate: Mapping[str, Any], topology: TopologyLike, demand: Demand | None = None
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
    topology = as_topology(topology)
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


def certify(bound: SecondsBound, *, liberties: frozenset[str] = frozenset()) -> Certified:
    """The strongest certificate of a bound on time, from the arguments that it was made of.

    Among equally strong ones, that for the widest class of schedules counts.

    Args:
        bound: from `seconds_bound`, `demand_bound`, `time_expanded` or a strategy.
        liberties: members of `Certified.forbids`; certificates that allow them are preferred.

    Raises:
        InvalidCertificateError: none could be recounted.

    >>> import gradweave as gw
    >>> bound = gw.bounds.seconds_bound(gw.topology.ring(4), "all_reduce", 1e9)
    >>> print(certify(bound))
    the gradient (1 GB) must leave the servers 6 times in all at 800 Gbit/s: 60 ms
    """
    found = recounted_parts(bound)
    found = [one for one in found if not one.forbids & liberties] or found
    most = max(one.least for one in found)
    near = (one for one in found if one.least >= most * (1 - NEARLY))
    return min(near, key=lambda one: len(one.forbids))


def recounted_parts(bound: SecondsBound) -> list[Certified]:
    """Certificates of all arguments of a bound on time; see `recounted_of_each`."""
    tried = [({**bound.claim, **part.claim}, part) for part in bound.parts]
    steps = [(claim, step) for claim, part in tried for step in part.prove()]
    return recounted_of_each(bound.topology, bound.demand, steps)


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


def certificates_in(schedule: ScheduleLike) -> list[tuple[Certified | str, list[str]]]:
    """The recounted bounds of the certificates in a schedule's file.

    Args:
        schedule: a valid schedule, as read from the file.

    Returns:
        For each certificate, the bound or the reason why it is refused; and everything the
        schedule does that the bound excludes (an empty list if the bound applies).
    """
    schedule = as_schedule(schedule)
    if not schedule.certificates:
        return []
    found: list[tuple[Certified | str, list[str]]] = []
    plan = None
    for one in schedule.certificates:
        try:
            proof = _proof(one, schedule.topology, schedule.demand)
        except InvalidCertificateError as error:
            found.append((str(error), []))
            continue
        plan = plan or _plan(schedule)
        other = ["another collective"] * (proof.name != schedule.kind)
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
    topology: TopologyLike,
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
    topology = as_topology(topology)
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
        return {"kind": "cut", "stage": stage, **set_of(one), "leaving": one.leaving}
    if isinstance(one, Distance):
        return {"kind": "depth", "stage": stage, "source": one.source, "target": one.target}
    if isinstance(one, LateEntry):
        step = {"kind": "late_entry", "stage": stage, **set_of(one)}
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
        return groups_step(stage, topology.servers[:, None].tolist(), leaving == one.capacity)
    return None
